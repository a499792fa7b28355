"""A recipe: a TOML file whose tables fill frozen config dataclasses. What no dataclass knows is an error, never ignored.

A typing slip in a recipe (`warmup_step = 100`) would otherwise train for a week with a default. So every key is looked up, every
value's type checked, and the message names the key, its place and the nearest key that exists. The dataclasses themselves lie
beside the stages they configure; this module knows none of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tokpipe.errors import RecipeError, TokpipeError

Config = TypeVar("Config")


def read_tables(path: str | os.PathLike[str], *, overrides: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, with `TABLE.KEY=VALUE` overrides applied: a flag beats the recipe.

    An override's value is TOML (`schedule.kind="wsd"`); a bare word that is not is taken as a string.

    Raises:
        RecipeError: if the file is missing, is not TOML, has keys outside tables, or an override is malformed.
    """
    try:
        with Path(path).open("rb") as file:
            tables = tomllib.load(file)
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: there is no such recipe. The repository's own are in recipes/.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: is not valid TOML: {error}") from error
    loose = [key for key, value in tables.items() if not isinstance(value, dict)]
    if loose:
        raise RecipeError(f"{path}: {', '.join(loose)} stands outside any table; put it under a heading such as [run]")
    for override in overrides:
        _apply_override(tables, override)
    return tables


def _apply_override(tables: dict[str, Any], override: str) -> None:
    place, equals, text = override.partition("=")
    table, dot, key = place.strip().partition(".")
    if not (equals and dot and table and key):
        raise RecipeError(f"override {override!r} is not of the form TABLE.KEY=VALUE, e.g. run.max_steps=100")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    target = tables.setdefault(table, {})
    *parents, last = key.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise RecipeError(f"override {override!r}: {parent} is a value, not a table")
    target[last] = value


def fill(config: type[Config], tables: Mapping[str, Any], *, where: str) -> Config:
    """Fill a dataclass of dataclasses from a recipe's tables.

    Args:
        config: a frozen dataclass; fields that are dataclasses are filled from sub-tables.
        tables: what `read_tables` gave.
        where: the recipe's path, for messages.

    Raises:
        RecipeError: for an unknown key, a missing one without a default, or a value of the wrong type.
    """
    return _fill(config, tables, where=where, table="")


def _fill(config: type[Config], table_values: Mapping[str, Any], *, where: str, table: str) -> Config:
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    hints = get_type_hints(config)
    for key in table_values:
        if key not in fields:
            raise RecipeError(_unknown(key, list(fields), where=where, table=table))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        place = f"{table}.{name}" if table else name
        kind = hints[name]
        if name in table_values:
            if dataclasses.is_dataclass(kind) and isinstance(table_values[name], Mapping):
                values[name] = _fill(kind, table_values[name], where=where, table=place)  # type: ignore[arg-type]
            else:
                values[name] = _convert(table_values[name], kind, where=where, place=place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            if not dataclasses.is_dataclass(kind):
                raise RecipeError(f"{where}: {place} is missing and has no default; it is of type {_type_name(kind)}")
            values[name] = _fill(kind, {}, where=where, table=place)  # type: ignore[arg-type]
    try:
        return config(**values)
    except (TokpipeError, ValueError) as error:
        raise RecipeError(f"{where}: [{table}] {error}" if table else f"{where}: {error}") from error


def _unknown(key: str, known: list[str], *, where: str, table: str) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    place = f"in [{table}]" if table else "as a table"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{where}: unknown key {key!r} {place}; {hint}Known there: {', '.join(known)}."


def _convert(value: Any, kind: Any, *, where: str, place: str) -> Any:
    converted, fits = _match(value, kind)
    if not fits:
        raise RecipeError(f"{where}: {place} must be {_type_name(kind)}, got {value!r}")
    return converted


def _match(value: Any, kind: Any) -> tuple[Any, bool]:
    """(the value as `kind`, whether it is one). A bool is never taken for a number; an int serves as a float."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value, any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return next((pair for pair in (_match(value, choice) for choice in arguments) if pair[1]), (value, False))
    if origin is tuple:
        return _match_tuple(value, arguments)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        return _match_mapping(value, arguments)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (float(value), True) if is_number else (value, False)
    if kind is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    return value, isinstance(kind, type) and isinstance(value, kind)


def _match_tuple(value: Any, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
    if not isinstance(value, list):
        return value, False
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        return value, False
    pairs = [_match(item, kind) for item, kind in zip(value, arguments, strict=True)]
    return tuple(item for item, _ in pairs), all(fits for _, fits in pairs)


def _match_mapping(value: Any, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
    if not isinstance(value, Mapping):
        return value, False
    pairs = {key: _match(item, arguments[1]) for key, item in value.items()}
    return {key: item for key, (item, _) in pairs.items()}, all(fits for _, fits in pairs.values())


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    return getattr(kind, "__name__", str(kind)) if not get_args(kind) else str(kind)


def to_toml(config: Any) -> str:
    """A filled config as TOML, so that the resolved recipe can be saved next to what it produced and read back."""
    lines: list[str] = []
    _write_table(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(config: Any, table: str, lines: list[str]) -> None:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {name: value for name, value in values.items() if not dataclasses.is_dataclass(value)}
    if plain and table:
        lines.append(f"[{table}]")
    lines += [f"{name} = {_toml_value(value)}" for name, value in plain.items() if value is not None]
    lines.append("")
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            _write_table(value, f"{table}.{name}" if table else name, lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_string(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    return _toml_string(str(value))


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(c if ord(c) >= 32 and ord(c) != 127 else f"\\u{ord(c):04x}" for c in escaped)
    return f'"{escaped}"'
