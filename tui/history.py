"""What was asked in SQL: kept over sessions in one small file that only its owner reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

MOST = 200
"""Queries that are kept."""
_LONGEST = 20_000


def default_path() -> Path:
    """`megascope/sql_history.jsonl` in $XDG_STATE_HOME, else in ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "megascope" / "sql_history.jsonl"


class History:
    """Queries, oldest first, and a place in them."""

    def __init__(self, path: Path | None) -> None:
        """path: None keeps them for this session only. A file that cannot be read is as good as none."""
        self._path = path
        self.queries = _read(path) if path is not None else []
        self._at = len(self.queries)
        self._draft = ""

    def add(self, sql: str) -> str:
        """Keep a query; returns why it could not be written to the file, else nothing."""
        if sql in self.queries:
            self.queries.remove(sql)
        self.queries = [*self.queries, sql][-MOST:]
        self._at = len(self.queries)
        return "" if self._path is None or len(sql) > _LONGEST else _write(self._path, self.queries)

    def move(self, by: int, shown: str) -> str | None:
        """The query `by` places away from the one shown; what was being written comes after the last. None: no more."""
        to = self._at + by
        # What was just run stands in the editor still.
        if 0 <= to < len(self.queries) and self._at == len(self.queries) and self.queries[to] == shown:
            to += by
        if not 0 <= to <= len(self.queries):
            return None
        if self._at == len(self.queries):
            self._draft = shown
        self._at = to
        return self._draft if to == len(self.queries) else self.queries[to]


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[-MOST:]
        found = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
    return [q for q in found if isinstance(q, str) and len(q) <= _LONGEST]


def _write(path: Path, queries: list[str]) -> str:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.writelines(json.dumps(q) + "\n" for q in queries if len(q) <= _LONGEST)
        temporary.replace(path)
    except OSError as error:
        return f"history was not kept: {error.strerror or error}"
    return ""
