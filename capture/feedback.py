"""Engine-wide values back to the programs: closed epochs merged over a window, written to feedback cells.

A query declares its cells (`Program.feedback`). In C, a feedback map says by its name what it is fed:
SOURCE__count, or SOURCE__p99 (p50, p999 for 99.9 % …) of a histogram SOURCE, over WINDOW_NS, in cell 0; with _by_key
behind it, cell k has the value of key k. A quantile is fed once there are LEAST values in the window, and is the middle
of its bucket. The stamp is one past the last epoch that is in the value, so that 0 says: never fed.

A value is as old as its stamp says. Behind the end of an epoch it takes: the engine's next publication (5 ms on the
host engine), a pass of the drainer (2 ms when it is quiet) and the engine's next publication again; while the
telemetry budget is spent, or nobody records, as long as that lasts.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .programs import histogram
from .programs.histogram import BUCKETS
from .programs.maps import Map, MapKind
from .programs.program import Cell, Program
from .segment.map_ring import Entries, Span
from .segment.program_words import FEEDBACK_CELL, FEEDBACK_CELLS, FEEDBACK_HEAD, Requests
from .segment.reader import SegmentReader
from .segment.words import Cursor

WINDOW_NS = 10 * 10**9
LEAST = 1_000
_NAME = re.compile(r"(?P<source>\w+?)__(?P<what>count|p(?P<digits>\d{1,4}))(?P<key>_by_key)?")
I64 = NDArray[np.int64]


def cells_of(program: Program) -> list[Cell]:
    """What a program is to be fed; declared, or by the names of its feedback maps."""
    if program.feedback:
        return list(program.feedback)
    out = []
    for m in program.maps:
        match = _NAME.fullmatch(m.name)
        if m.kind == MapKind.FEEDBACK and match:
            digits = match["digits"]
            quantile = int(digits) / 10 ** len(digits) if digits else None
            out.append(Cell(m.name, match["source"], quantile, WINDOW_NS, bool(match["key"])))
    return out


@dataclass
class _Piece:
    """One export of a source: totals and counts by bucket of each key."""

    epoch: int
    """one past its last epoch"""
    t_end: int
    keys: I64
    totals: I64
    entry: I64
    bucket: I64
    count: I64


@dataclass
class _Fed:
    """A cell (or a map of cells by key) of a running program, and the exports of its source within the window."""

    program: int
    cell: Cell
    map: int
    cells: int
    source: int
    pieces: deque[_Piece] = field(default_factory=deque)
    done: int = 0
    """epoch of the last value"""


class Values:
    """What the feedback cells of some programs are to hold, from what their maps held in closed epochs."""

    def __init__(self) -> None:
        self._fed: dict[int, list[_Fed]] = {}
        self._waiting: dict[tuple[int, int, int], tuple[int, int]] = {}

    def follow(self, program_id: int, program: Program) -> None:
        """A program has been attached."""
        index = {m.name: i for i, m in enumerate(program.maps)}
        self._fed[program_id] = [
            _Fed(program_id, c, index[c.map], program.maps[index[c.map]].max_entries, index[c.source])
            for c in cells_of(program)
            if c.map in index and c.source in index and program.maps[index[c.map]].kind == MapKind.FEEDBACK
        ]

    def keep(self, live: set[int]) -> None:
        """Forget programs that run no more."""
        self._fed = {p: fed for p, fed in self._fed.items() if p in live}

    def add(self, span: Span, declared: Map, entries: Entries) -> None:
        """An epoch of a map."""
        for fed in self._fed.get(span.program, ()):
            if fed.source == span.map and not span.state:
                fed.pieces.append(_piece(span, declared, entries))

    def take(self, closed: int) -> dict[tuple[int, int, int], tuple[int, int]]:
        """What changed since the last call: (value, stamp) by program, map and index. Epochs below `closed` ended."""
        self._close(closed)
        out, self._waiting = self._waiting, {}
        return out

    def _close(self, closed: int) -> None:
        for fed in (f for those in self._fed.values() for f in those):
            newest = max((p.epoch for p in fed.pieces if p.epoch <= closed), default=0)
            if newest > fed.done:
                fed.done = newest
                self._compute(fed, newest)

    def _compute(self, fed: _Fed, newest: int) -> None:
        end = max(p.t_end for p in fed.pieces if p.epoch <= newest)
        while fed.pieces and fed.pieces[0].t_end <= end - fed.cell.window_ns:
            fed.pieces.popleft()
        inside = [p for p in fed.pieces if p.epoch <= newest]
        keys = np.concatenate([p.keys for p in inside])
        if not fed.cell.keyed:
            keys = np.zeros(len(keys), np.int64)
        offsets = np.cumsum([0, *(len(p.keys) for p in inside)])
        entry = np.concatenate([p.entry + at for p, at in zip(inside, offsets, strict=False)])
        bucket, count = (np.concatenate([getattr(p, name) for p in inside]) for name in ("bucket", "count"))
        totals = np.concatenate([p.totals for p in inside])
        for key in np.unique(keys[(keys >= 0) & (keys < fed.cells)]).tolist():
            total = int(totals[keys == key].sum())
            value: int | None = total
            if fed.cell.quantile is not None:
                mine = keys[entry] == key
                counts = np.bincount(bucket[mine], count[mine].astype(np.float64), BUCKETS).astype(np.float64)
                value = _quantile(counts, fed.cell.quantile)
            if value is not None:
                self._waiting[fed.program, fed.map, key] = (min(value, (1 << 63) - 1), newest)


class Feedback(Values):
    """Everything that the drainer feeds back to the engine of a segment."""

    def __init__(self, segment: SegmentReader) -> None:
        super().__init__()
        self.segment = segment
        self._commit: int | None = None

    def step(self) -> None:
        """Compute what closed epochs have changed, and hand over what the engine is ready to take."""
        if not any(self._fed.values()):
            return
        cursors = self.segment.cursors()
        self._close(int(cursors[:, Cursor.EPOCH].min()))
        if self._waiting and (self._commit is None or (cursors[:, Cursor.FEEDBACK] == self._commit).all()):
            self._hand_over()

    def _hand_over(self) -> None:
        some = list(self._waiting.items())[:FEEDBACK_CELLS]
        cells = b"".join(FEEDBACK_CELL.pack(p, m, 0, i, value, epoch) for (p, m, i), (value, epoch) in some)
        count = struct.pack("<I", len(some))
        at = self.segment.layout.requests_offset
        self.segment.poke(at + Requests.FEEDBACK, FEEDBACK_HEAD.pack(len(some), zlib.crc32(count + cells)) + cells)
        before = self.segment.read(at + Requests.FEEDBACK_COMMIT, 1)[0]
        self._commit = before + 1 & 0xFF
        self.segment.poke(at + Requests.FEEDBACK_COMMIT, bytes([self._commit]))
        for key, _ in some:
            del self._waiting[key]


def _piece(span: Span, declared: Map, e: Entries) -> _Piece:
    n = len(e.keys)
    raw = np.zeros((n, 8), np.uint8)
    width = min(8, e.keys.shape[1])
    raw[:, :width] = e.keys[:, :width]
    keys = raw.view("<i8")[:, 0]
    if declared.kind == MapKind.HIST:
        totals = e.head[:, 0].astype(np.int64)
    else:
        totals = (
            np.ascontiguousarray(e.values[:, :8]).view("<i8")[:, 0] if e.values.shape[1] >= 8 else np.zeros(n, "<i8")
        )
    entry = np.repeat(np.arange(n), e.buckets.astype(np.int64)) if declared.kind == MapKind.HIST else e.bucket
    return _Piece(span.epoch + span.epochs, span.t_end, keys, totals, entry, e.bucket, e.count)


def _quantile(counts: NDArray[np.float64], q: float) -> int | None:
    """The middle of the bucket in which it lies; None for fewer than LEAST values."""
    total = int(counts.sum())
    if total < LEAST:
        return None
    rank = max(1, int(np.ceil(q * total - 1e-9)))
    return histogram.middle(int(np.searchsorted(np.cumsum(counts), rank)))
