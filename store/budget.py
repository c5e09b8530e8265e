"""What happens when the disk is not enough: raw rows stop, summaries go on, and every dropped row is counted.

`Gate` decides whether raw rows may still be written and turns what it refuses into loss rows, one per contiguous
stretch. `Reserve` is space taken when the trace is created, given back piece by piece when the file system is full,
so that coverage, loss and the end record still fit.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .gather import BATCH_ROWS
from .tables import RING_ROW

MEGA = 1_000_000
FULL = (errno.ENOSPC, errno.EDQUOT)
RESERVE_FILE = "reserve"
_RESERVE = 16 << 20
_RESERVE_LEAST = 64 << 10
_STRETCH_S = 10.0
_STRETCHES = 256


def least(tables: int = 0) -> int:
    """The smallest budget, in bytes and whole megabytes, in which raw rows have room for certain.

    tables: bytes that the trace holds before any rows come. Rows are admitted in batches of up to twice BATCH_ROWS.
    """
    room = tables + 2 * BATCH_ROWS * RING_ROW.dtype.itemsize
    return -(-room * 8 // (7 * MEGA)) * MEGA


@dataclass
class Stretch:
    """Consecutive raw rows that were dropped for one reason: loss kind, rows, and their device times in ns."""

    kind: str
    count: int
    t_begin: int
    t_end: int


class Gate:
    """Admits raw rows while the trace has room for them.

    Rows stop at seven eighths of the budget, which leaves room for the part that is being sealed and for summaries,
    and go on when sealing has brought the trace below three quarters. A rolling recording lets go of its oldest rows
    before that (see `retiring`). A full file system stops them for good.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._stop_at = None if max_bytes is None else max_bytes * 7 // 8
        self._resume_at = None if max_bytes is None else max_bytes * 3 // 4
        self.stopped: str | None = None
        self._open: Stretch | None = None
        self._since = 0.0
        self._told = 0

    def admits(self, used: int, more: int) -> bool:
        """May `more` bytes of raw rows be added to a trace of `used` bytes?"""
        if self.stopped != "disk_full":
            self.stopped = "disk_budget" if self.lacks(used, more) > 0 else None
        return self.stopped is None

    def lacks(self, used: int, more: int) -> int:
        """How many bytes must go before `more` may be added to `used` bytes; none or fewer when they may."""
        limit = self._resume_at if self.stopped else self._stop_at
        return 0 if limit is None else used + more - limit

    def full(self) -> None:
        """The file system has no room: no more raw rows."""
        self.stopped = "disk_full"

    def drop(self, batch: pa.RecordBatch) -> Iterator[Stretch]:
        """Count raw rows as dropped for the present reason; yields what is to be told now."""
        assert self.stopped is not None
        if self._open and (self._open.kind != self.stopped):
            yield from self.close()
        times = pc.min_max(batch.column(batch.schema.get_field_index("t")))
        low, high = (min(times[k].as_py(), (1 << 63) - 1) for k in ("min", "max"))
        if self._open is None:
            self._open, self._since = Stretch(self.stopped, 0, low, high), time.monotonic()
        s = self._open
        s.count, s.t_begin, s.t_end = s.count + batch.num_rows, min(s.t_begin, low), max(s.t_end, high)
        # Told from time to time, because a recorder that is killed takes what it has not told with it; but a
        # bounded number of times, each stretch waiting a little longer.
        if self._told < _STRETCHES and time.monotonic() - self._since > _STRETCH_S * (1 + self._told / 8):
            yield from self.close()

    def close(self, *, last: bool = False) -> Iterator[Stretch]:
        """End the stretch; beyond a bounded number, stretches are merged until the `last`."""
        if self._open and (last or self._told < _STRETCHES):
            self._told += 1
            yield self._open
            self._open = None


class Reserve:
    """A preallocated file that is given back when the file system is full."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self._path = path
        self.size = _RESERVE if max_bytes is None else max(_RESERVE_LEAST, min(_RESERVE, max_bytes // 16))
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while True:
            try:
                os.posix_fallocate(self._fd, 0, self.size)
                return
            except OSError as error:
                if error.errno not in FULL or self.size <= _RESERVE_LEAST:
                    os.close(self._fd)
                    path.unlink(missing_ok=True)
                    raise
                self.size //= 4
                os.ftruncate(self._fd, 0)

    def give_back(self, *, keep: int = 0) -> bool:
        """Free half of it, or all that is left when that is little; False when no more than `keep` bytes are left."""
        if self.size <= keep:
            return False
        half = self.size // 2
        self.size = half if half >= _RESERVE_LEAST else 0
        os.ftruncate(self._fd, self.size)
        return True

    def remove(self) -> None:
        """Give back all of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
            self._fd, self.size = -1, 0
