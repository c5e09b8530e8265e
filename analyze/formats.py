"""The formats of an answer by name, for a command line that has not loaded what writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..store.errors import Usage

FORMATS = ("table", "csv", "json", "parquet", "arrow")
BINARY = ("parquet", "arrow")
ENDINGS = {
    ".txt": "table",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""An answer's file by its ending."""


def format_asked(path: Path | None, endings: Mapping[str, str] = ENDINGS, plain: str = "table") -> str:
    """The format that -o asks for where --format does not: `plain` without a file, and for a name without ending.

    Raises Usage for an ending that is none of `endings`.
    """
    ending = path.suffix.lower() if path is not None else ""
    if ending and ending not in endings:
        why = f"its ending {ending} is none of {', '.join(endings)}"
        raise Usage(f"cannot write {path}", why, "use one of these, or say --format")
    return endings[ending] if ending else plain
