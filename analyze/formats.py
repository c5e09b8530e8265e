"""The formats of an answer by name, for a command line that has not loaded what writes them."""

from __future__ import annotations

from pathlib import Path

FORMATS = ("table", "csv", "json", "parquet", "arrow")
BINARY = ("parquet", "arrow")
_ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".arrow": "arrow"}


def format_of(path: Path | None) -> str:
    """The format that a file's ending asks for; table for any other, and for none."""
    return _ENDINGS.get(path.suffix.lower(), "table") if path else "table"
