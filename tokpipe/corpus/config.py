"""What a person may choose about reading raw text."""

from __future__ import annotations

from dataclasses import dataclass

from tokpipe.urls import refuse_credentials

TEXT_DOCUMENTS = ("file", "line", "blank-line")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """Where the text is and how it becomes documents."""

    corpus: str
    """A folder or file, any fsspec URL, or `hf:NAME[:CONFIG[:SPLIT]]`."""

    text_column: str = "text"
    """The column or JSON key that holds the text; dots lead into structs (`body.text`)."""

    text_documents: str = "file"
    """What one document of a `.txt` file is: the `file`, a `line`, or a `blank-line` paragraph."""

    sources: tuple[tuple[str, str], ...] = ()
    """(NAME, GLOB) pairs that override a file's source; the first match wins, `*` also crosses `/`."""

    split_bytes: int = 1 << 30
    """About how much one task reads, in bytes of text."""

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ValueError("corpus must name a folder, a file, a URL or hf:NAME, got an empty string")
        refuse_credentials(self.corpus)
        if self.text_documents not in TEXT_DOCUMENTS:
            raise ValueError(f"text_documents must be one of {', '.join(TEXT_DOCUMENTS)}, got {self.text_documents!r}")
        if self.split_bytes < 1:
            raise ValueError(f"split_bytes must be at least 1, got {self.split_bytes}")
        if not all(self.text_column.split(".")):
            raise ValueError(f"text_column must be a name or a dotted path of names, got {self.text_column!r}")
        for name, glob in self.sources:
            if not name or "/" in name or not glob:
                raise ValueError(f"a source override is NAME=GLOB with a NAME that has no '/', got {name!r}={glob!r}")

    @property
    def column_path(self) -> tuple[str, ...]:
        """The names that lead to the text, outermost first."""
        return tuple(self.text_column.split("."))
