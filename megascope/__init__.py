"""Megascope: record, keep and question what happens inside a persistent GPU megakernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .api import Recording

__version__ = "0.1.0"


def open(
    path: str | Path, *, threads: int | None = None, memory_limit: str | None = None, allow_files: bool = False
) -> Recording:
    """Open the trace directory at `path` for questions: see `megascope.api.Recording` and docs/python.md.

    threads: default one per core. memory_limit: DuckDB's notation ("2GB"), default half of the machine's memory.
    allow_files: SQL may read files too. Raises store.errors.Refused for what cannot be opened.
    """
    # What answers is loaded only by those who ask: the command line imports this module for every verb.
    from . import api

    return api.open(path, threads=threads, memory_limit=memory_limit, allow_files=allow_files)
