"""Tiles: how much each worker ran and waited in slices of time from 65 µs to 67 ms, so that any zoom is quickly drawn.

Built from decided tasks and waits while the recording goes on. Slices are written when the frontier has passed the
coarsest one that holds them, each level from the next finer one. A task or wait that is decided later than that
(because it is longer than `MARGIN_NS`, or an event was late) gives more rows of slices that are written already: rows
of one slice add up, and the sum of `busy` is at every level the same, exactly: the running time of all tasks. Of
several rows of a slice the top class is that of the row with the most `top_ns`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .pairing_columns import as_table
from .pairing_rows import I64, NONE, Array, Bools
from .tables import DEP_CLASSES, TILES
from .tiles_pieces import COARSEST, LEVELS, STARTS, WAITS_FROM, Grid, Intervals, Sums, runs

__all__ = ["LEVELS", "MARGIN_NS", "PENDING_MOST", "TileBuilder"]

MARGIN_NS = 1 << 22
"""How far behind the frontier slices are written: tasks shorter than this have been decided by then."""
PENDING_MOST = 1 << 21
"""Intervals that wait for their slices, at 32 bytes each; beyond, slices are written in several rows."""

_WINDOW = 1 << COARSEST
_LONGEST = 1 << 52
_FARTHEST = 1 << 61
_NONE = -1
_WAITS = tuple(f"wait_{name}" for name in DEP_CLASSES)
_SUMS = ("busy", *_WAITS, "tasks")
_WORKER_BITS = 17


Starts = tuple[I64, I64]
"""Places, and when a task started there."""
Lost = tuple[I64, I64, I64, I64]
"""Places, begins and ends of the intervals in which events were lost, and how many."""


class TileBuilder:
    """Builds `TILES` part by part. left_out: tasks, waits and losses whose times are impossible."""

    def __init__(self, *, margin_ns: int = MARGIN_NS, pending_most: int = PENDING_MOST) -> None:
        self._margin, self._pending_most = margin_ns, pending_most
        self._intervals = [Intervals.none()]
        self._starts: list[Starts] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        self._until = NONE
        self.left_out = 0

    @property
    def pending(self) -> int:
        """Intervals that wait for their slices to be written."""
        return sum(map(len, self._intervals))

    @property
    def until(self) -> int:
        """All that was fed is written up to this time, in ns."""
        return self._until

    def resume(self, until: int, tasks: pa.Table, waits: pa.Table) -> None:
        """Go on where another builder stood: what of decided `TASKS` and `WAITS` is after `until` is to be written.

        For a new builder. Those that end before may be left out.
        """
        self._until = until
        self._add(tasks, waits)
        place, start = self._all_starts()
        later = start >= until
        self._intervals, self._starts = [Intervals.join(self._intervals).cut(until)[1]], [(place[later], start[later])]

    def feed(self, tasks: pa.Table, waits: pa.Table, frontier: int, losses: pa.Table | None = None) -> pa.Table:
        """Take decided `TASKS` and `WAITS`, and what was lost as `INTERVALS`; returns `TILES` that are complete now.

        In order of level, rank, worker, tile, span. Losses come out at once, in rows of their own.
        """
        self._add(tasks, waits)
        lost = [] if losses is None else [self._losses(losses)]
        until = max(frontier, NONE + self._margin) - self._margin
        if self.pending <= self._pending_most:
            until = until // _WINDOW * _WINDOW
        until = max(until, self._until)
        if until == self._until and not self._late() and not (lost and len(lost[0][0])):
            return TILES.schema.empty_table()
        self._until = until
        intervals, later = Intervals.join(self._intervals).cut(until)
        place, start = self._all_starts()
        now = start < until
        self._intervals, self._starts = [later], [(place[~now], start[~now])]
        return _rows(intervals, (place[now], start[now]), lost)

    def finish(self) -> pa.Table:
        """All tiles that are left, in the same order."""
        rows = _rows(Intervals.join(self._intervals), self._all_starts(), [])
        self._intervals, self._starts = [Intervals.none()], [(np.empty(0, np.int64), np.empty(0, np.int64))]
        return rows

    def _late(self) -> bool:
        """Is anything before what is written already not in it?"""
        times = [i.begin for i in self._intervals] + [t for _, t in self._starts]
        return any(len(t) and int(t.min()) < self._until for t in times)

    def _all_starts(self) -> Starts:
        return np.concatenate([p for p, _ in self._starts]), np.concatenate([t for _, t in self._starts])

    def _add(self, tasks: pa.Table, waits: pa.Table) -> None:
        place, start = _place(tasks), _column(tasks, "start")
        started = _valid(tasks, "start") & (_near(start))
        self._starts.append((place[started], start[started]))
        self._take(place, _column(tasks, "task_class"), start, _column(tasks, "complete"), _valid(tasks, "exec_ns"))
        # A worker without a task waits for work, whatever kind of dependency its engine calls that.
        kind = np.where(_column(waits, "task") == 0, 0, _column(waits, "dep_class"))
        what = WAITS_FROM + np.where((kind >= 0) & (kind < len(_WAITS)), kind, 0)
        self._take(_place(waits), what, _column(waits, "t_begin"), _column(waits, "t_end"), _valid(waits, "ns"))

    def _take(self, place: I64, what: I64, begin: I64, end: I64, known: Bools) -> None:
        near = _near(begin) & _near(end) & (what >= 0)
        possible = near & (end >= begin) & (end - begin < _LONGEST)
        self.left_out += int(np.count_nonzero(known & ~possible))
        self._intervals.append(Intervals(place, what, begin, end).pick(known & possible & (end > begin)))

    def _losses(self, losses: pa.Table) -> Lost:
        begin, end, count = (_column(losses, n) for n in ("t_begin", "t_end", "lost"))
        possible = _near(begin) & _near(end) & (end >= begin)
        self.left_out += int(np.count_nonzero((count > 0) & ~possible))
        which = (count > 0) & possible
        return _place(losses)[which], begin[which], np.maximum(end, begin + 1)[which], count[which]


def _near(t: I64) -> Bools:
    """Is it a time of which differences do not overflow?"""
    near: Bools = (t > -_FARTHEST) & (t < _FARTHEST)
    return near


def _column(table: pa.Table, name: str) -> I64:
    column: Any = table[name]
    values: I64 = pc.fill_null(column, pa.scalar(_NONE, column.type)).to_numpy().astype(np.int64, copy=False)
    return values


def _valid(table: pa.Table, name: str) -> Bools:
    valid: Bools = table[name].is_valid().to_numpy()
    return valid


def _place(table: pa.Table) -> I64:
    """rank << 17 | worker + 1, which is 0 where the worker is not known."""
    return _column(table, "rank") << _WORKER_BITS | (np.clip(_column(table, "worker"), -1, (1 << 16) - 1) + 1)


def _rows(intervals: Intervals, starts: Starts, lost: list[Lost]) -> pa.Table:
    """All levels of what is given, as `TILES`."""
    grid = Grid(intervals, *starts)
    if not grid.fits and len(intervals) + len(starts[0]) > 1:
        # Never of a real clock. Rows of one slice add up, so it may be done in two halves.
        parts = []
        for half in range(2):
            some = np.array_split(np.arange(len(intervals)), 2)[half]
            i = np.array_split(np.arange(len(starts[0])), 2)[half]
            parts.append(_rows(intervals.pick(some), (starts[0][i], starts[1][i]), [] if half else lost))
        return pa.concat_tables(parts)
    tables = []
    sums, finer = grid.starts(), LEVELS[0]
    left = np.arange(len(intervals))
    for level in LEVELS:
        # What covers a slice of the finer level but none of this is from here on in the sums.
        covers = intervals.covers(level)
        keys, values = grid.ends(left[~covers], level)
        sums = Sums.of([grid.coarser(sums, level - finer), *keys], [sums.ns, *values])
        intervals, left, finer = intervals.pick(covers), left[covers], level
        here = sums
        if len(left):
            keys, values = grid.ends(left, level)
            here = Sums.of([sums.key, *keys], [sums.ns, *values])
        place, tile, what = grid.read(here, level)
        first = np.ones(len(tile), np.bool_)
        first[1:] = (place[1:] != place[:-1]) | (tile[1:] != tile[:-1])
        groups = [_cells(place, tile, what, here.ns, first, np.ones(int(first.sum()), np.int64))]
        if len(left):
            tile, span = runs(intervals, level)
            groups.append(
                _cells(intervals.place, tile, intervals.what, span << level, np.ones(len(span), np.bool_), span)
            )
        groups += [_lost_cells(some, level) for some in lost]
        tables.append(_level(groups, level))
    return pa.concat_tables(tables)


def _cells(place: I64, tile: I64, what: I64, ns: I64, first: Bools, span: I64) -> dict[str, I64]:
    """Rows of one slice or run each from its pieces; `first` of each stands at its head."""
    at = np.flatnonzero(first)
    cell = np.cumsum(first) - 1
    is_task = what < WAITS_FROM
    kind = np.where(is_task, 0, np.where(what == STARTS, len(_SUMS) - 1, what - WAITS_FROM + 1))
    # A run may have more ns than a double holds exactly, and is alone in its cell.
    alone = len(at) == len(what)
    if alone:
        sums = np.zeros((len(at), len(_SUMS)), np.int64)
        sums[cell, kind] = ns
    else:
        sums = np.bincount(cell * len(_SUMS) + kind, ns, len(at) * len(_SUMS)).reshape(-1, len(_SUMS)).astype(np.int64)
    out = {"place": place[at], "tile": tile[at], "span": span, "lost": np.zeros(len(at), np.int64)}
    out |= {name: sums[:, i] for i, name in enumerate(_SUMS)}
    top = np.maximum.reduceat(np.where(is_task, ns, 0), at) if len(at) else at
    # Of several the lowest class, which is written last.
    best = np.flatnonzero(is_task & (ns == top[cell]))[::-1]
    classes = np.full(len(at), _NONE)
    classes[cell[best]] = what[best]
    return out | {"top_ns": top, "top_class": classes}


def _lost_cells(lost: Lost, level: int) -> dict[str, I64]:
    place, begin, end, count = lost
    out = {name: np.zeros(len(place), np.int64) for name in (*_SUMS, "top_ns")}
    tile = begin >> level
    return out | {
        "place": place, "tile": tile, "span": (end - 1 >> level) - tile + 1, "lost": count,
        "top_class": np.full(len(place), _NONE),
    }  # fmt: skip


def _level(groups: list[dict[str, I64]], level: int) -> pa.Table:
    columns = {name: np.concatenate([g[name] for g in groups]) for name in groups[0]}
    if len(groups) > 1:
        order = np.lexsort((columns["lost"], columns["span"], columns["tile"], columns["place"]))
        columns = {name: column[order] for name, column in columns.items()}
    place, top = columns.pop("place"), columns.pop("top_class")
    worker = (place & ((1 << _WORKER_BITS) - 1)) - 1
    given: dict[str, Array | tuple[Array, Bools]] = dict(columns)
    given |= {
        "rank": (place >> _WORKER_BITS).astype(np.int16),
        "worker": (worker.astype(np.int32), worker >= 0),
        "level": np.full(len(place), level, np.int16),
        "top_class": (top.astype(np.int32), top >= 0),
    }
    return as_table(TILES, given)
