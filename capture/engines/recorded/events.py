"""A trace's events by epoch, each worker's in order of seq.

A part is a stretch of time, in order of (rank, worker, seq); parts overlap a little. A worker's events never go back
in time, and those that do are of the epoch that its others have reached. What is worked on is a row group: small enough
to stay in the cache while several programs run over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ....store.errors import Refused
from .columns import Columns, Decoder, Place
from .recording import Recording

I64 = NDArray[np.int64]
_NEVER = 1 << 62
_FEW_ROWS = 128
"""A stretch of one worker below this is not worth a call of its own: rows are put in order of their epochs before."""


@dataclass
class _Group:
    """A row group. stretches: by epoch, (begin, end, rank) of rows, of `order` where that is not None."""

    place: Place
    stretches: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    order: I64 | None = None


@dataclass(frozen=True)
class Stretch:
    """Rows of one epoch and rank. rows: where each stands in its row group."""

    columns: Columns
    rank: int
    place: Place
    rows: I64 | range


class Events:
    """The rows of a recording."""

    def __init__(self, recording: Recording, decoder: Decoder) -> None:
        self._recording, self._decoder = recording, decoder
        parts = recording.trace.verified("events")
        self._sources: list[tuple[Path | None, int, int]] = [(p.path, p.t_min or 0, p.t_max or 0) for p in parts]
        self.rows = sum(p.rows for p in parts) + decoder.tail.num_rows
        if decoder.tail.num_rows:
            t = decoder.tail["t"].to_numpy()
            self._sources.append((None, int(t.min()), int(t.max())))
        self._reached = np.zeros(recording.workers, np.int64)
        """the epoch that each worker is in"""

    @property
    def span(self) -> tuple[int, int] | None:
        """Times of the first and the last row, ns; None without any."""
        if not self._sources:
            return None
        return min(low for _, low, _ in self._sources), max(high for _, _, high in self._sources)

    def epochs(self) -> Iterator[tuple[int, Iterator[Stretch]]]:
        """(epoch, its rows) of each epoch that has any, ascending. The rows must be used up before the next is asked.

        Raises Refused for a part that cannot be read, or that no recording of these workers has.
        """
        lows = np.array([t for _, t, _ in self._sources], np.int64)
        # The first epoch that this part or any later one may have.
        soonest = [*(np.minimum.accumulate(lows[::-1])[::-1] // self._recording.epoch_ns).tolist(), _NEVER]
        self._loaded, self._pending = 0, list[_Group]()
        before = -_NEVER
        while True:
            epoch = min(soonest[self._loaded], min((min(g.stretches) for g in self._pending), default=_NEVER))
            if epoch == _NEVER:
                return
            if epoch < before:
                why = "a part has rows before the time that its manifest says"
                raise Refused(self._recording.what, why, "run megascope check on it")
            before = epoch
            yield epoch, self._of(epoch, soonest)
            self._pending = [g for g in self._pending if g.stretches]

    def _of(self, epoch: int, soonest: list[int]) -> Iterator[Stretch]:
        """An epoch's rows: of row groups that were read for earlier ones, then of parts that it is the first to need.

        What is new is used while it is in the cache.
        """
        for group in self._pending:
            yield from self._rows(epoch, group)
        while soonest[self._loaded] <= epoch:
            source = self._sources[self._loaded]
            self._loaded += 1
            for group in self._load(*source):
                self._pending.append(group)
                yield from self._rows(epoch, group)

    def _rows(self, epoch: int, group: _Group) -> Iterator[Stretch]:
        stretches = group.stretches.pop(epoch, None)
        if not stretches:
            return
        columns, order = self._decoder.columns(group.place), group.order
        for begin, end, rank in stretches:
            if order is None:
                part = {name: values[begin:end] for name, values in columns.items()}
                yield Stretch(part, rank, group.place, range(begin, end))
            else:
                rows = order[begin:end]
                yield Stretch({name: values[rows] for name, values in columns.items()}, rank, group.place, rows)

    def _load(self, part: Path | None, low: int, high: int) -> Iterator[_Group]:
        first, last = low // self._recording.epoch_ns, high // self._recording.epoch_ns
        one = first == last and not self._recording.rank.any() and first >= self._reached.max()
        for number, rows in enumerate(self._decoder.row_groups(part)):
            group = _Group((part, number))
            if one and rows:
                group.stretches[first] = [(0, rows, 0)]
            elif rows:
                self._divide(group)
            yield group
        if one:
            self._reached[:] = first

    def _divide(self, group: _Group) -> None:
        """Find out which rows belong to which epoch and rank."""
        columns = self._decoder.columns(group.place)
        worker, t, epoch_ns = columns["worker"], columns["t"], self._recording.epoch_ns
        begins = [0, *(np.nonzero(worker[1:] != worker[:-1])[0] + 1).tolist()]
        backs = np.nonzero(t[1:] < t[:-1])[0] + 1
        ordered = bool(np.isin(backs, begins).all())
        stretches: list[tuple[int, int, int, int]] = []
        for begin, end in zip(begins, [*begins[1:], len(t)], strict=True):
            w = int(worker[begin])
            rank, reached = int(self._recording.rank[w]), int(self._reached[w])
            mine = t[begin:end] if ordered else np.maximum.accumulate(t[begin:end])
            first, last = max(int(mine[0]) // epoch_ns, reached), max(int(mine[-1]) // epoch_ns, reached)
            cuts = [begin, end]
            if first < last:
                edges = np.arange(first + 1, last + 1) * epoch_ns
                cuts[1:1] = (begin + np.searchsorted(mine, edges)).tolist()
            stretches += ((first + i, rank, a, b) for i, (a, b) in enumerate(pairwise(cuts)) if a < b)
            self._reached[w] = last
        if len(stretches) * _FEW_ROWS > len(t):
            stretches.sort(key=lambda s: s[:2])
            group.order = np.concatenate([np.arange(a, b) for _, _, a, b in stretches])
            at = 0
            for (epoch, rank), same in groupby(stretches, key=lambda s: s[:2]):
                rows = sum(b - a for _, _, a, b in same)
                group.stretches.setdefault(epoch, []).append((at, at + rows, rank))
                at += rows
        else:
            for epoch, rank, a, b in stretches:
                group.stretches.setdefault(epoch, []).append((a, b, rank))
