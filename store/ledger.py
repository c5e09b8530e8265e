"""How many bytes of a trace are on disk and how many of its rows are sealed, counted by all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from . import spool
from .tables import EVENTS


class Ledger:
    """`begun`: bytes that were there from the start. Its methods may be called by any thread."""

    def __init__(self, begun: int) -> None:
        self._lock = threading.Lock()
        self._written, self._removed = begun, 0
        self._sealed_events = 0

    @property
    def sealed_events(self) -> int:
        """Rows of events that are sealed, or lost in sealing."""
        with self._lock:
            return self._sealed_events

    @property
    def net_bytes(self) -> int:
        """Bytes of all that is not in the spool, less those that have gone from it."""
        with self._lock:
            return self._written - self._removed

    def sealed(self, stream: str, files: Sequence[spool.SpoolFile], entry: dict[str, Any] | None) -> None:
        """Spool files have become a part, or nothing that could be read."""
        with self._lock:
            self._removed += sum(f.on_disk for f in files)
            self._written += entry["bytes"] if entry else 0
            if stream == EVENTS.name:
                self._sealed_events += sum(f.rows for f in files)

    def add(self, count: int) -> None:
        """So many bytes more, or fewer."""
        with self._lock:
            self._written += count
