"""One JSON record, with Python's parser: slow, but it says what is wrong with it."""

from __future__ import annotations

import json


def read_record(raw: bytes, column: tuple[str, ...]) -> tuple[bytes | None, str, str]:
    """Read one line with Python's parser: (text, "", "") or (None, reason, detail). Of a key given twice the last one counts."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, "invalid_utf8", f"{error.reason} at byte {error.start:,} of the line"
    except RecursionError:
        return None, "bad_json", "nested too deeply"
    except ValueError as error:
        return None, "bad_json", str(error)
    if not isinstance(value, dict):
        return None, "not_an_object", f"the record is of JSON type {_json_type(value)}"
    for name in column:
        if value is None:
            return None, "null_text", ""
        if not isinstance(value, dict):
            return None, "not_a_string", f"{name!r} is looked for in a value of JSON type {_json_type(value)}"
        if name not in value:
            return None, "missing_text", f"no {'.'.join(column)!r}; keys: {', '.join(map(repr, list(value)[:10]))}"
        value = value[name]
    if value is None:
        return None, "null_text", ""
    if not isinstance(value, str):
        return None, "not_a_string", f"the text is of JSON type {_json_type(value)}"
    try:
        return value.encode("utf-8"), "", ""
    except UnicodeEncodeError as error:
        return None, "lone_surrogate", f"U+{ord(value[error.start]):04X} at character {error.start:,} of the text"


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names[type(value)]
