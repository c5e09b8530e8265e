"""Rings that nobody reads: their engine frees them, so that nothing waits for a reader that is not there.

Records of intervals and of maps are never dropped where they have no room: the interval stays open, and of a change of
programs its end is waited for. While a recorder runs that is right, and short. Where none does, whoever comes later
begins with what comes after him (taking_over.py), so nothing is lost by freeing what is there.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...store.errors import MegascopeError
from .exports import MapRingReader
from .program_words import MAP_CHUNKS
from .reader import SegmentReader
from .summaries import SummaryReader
from .words import CHUNK, Cursor
from .writer import SegmentWriter

FILLING = 0.75
"""Of a ring: from then on it is freed."""


class Unread:
    """An engine's second look at its own segment, as a reader of last resort."""

    def __init__(self, writer: SegmentWriter, path: Path) -> None:
        self._writer = writer
        self._segment = SegmentReader.open(path, write=True)

    def free(self) -> None:
        """Free the rings of records and maps if one is filling and nobody records."""
        if not self._filling():
            return
        try:
            fcntl.flock(self._segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the drainer's: he is there, or kept out
        except BlockingIOError:
            return
        try:
            # A head that cannot be, or a file cut short, is told by whoever records.
            with suppress(MegascopeError):
                SummaryReader(self._segment).pass_by()
                MapRingReader(self._segment).pass_by()
        finally:
            fcntl.flock(self._segment.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self._segment.close()

    def _filling(self) -> bool:
        w, lay = self._writer, self._writer.layout
        # Tails are counted modulo 256, of which a ring has fewer.
        records = (w.cursor[:, Cursor.SUMMARY_HEAD].astype(np.int64) // CHUNK - w.summary_tail) % 256 * CHUNK
        if bool((records > FILLING * lay.summary_rows).any()):
            return True
        if not lay.program_slots:
            return False
        chunks = (w.cursor[:, Cursor.MAP_HEAD].astype(np.int64) // (lay.map_bytes // MAP_CHUNKS) - w.map_tail) % 256
        return bool((chunks > FILLING * MAP_CHUNKS).any())
