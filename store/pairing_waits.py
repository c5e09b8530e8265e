"""Waits from their wait and resume events.

A worker is one thread: it waits for one thing at a time, and its events come in order. So a wait belongs to the next
wait or resume row of its worker, if that is a resume that agrees about when the wait began; else an event was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .pairing_columns import as_table
from .pairing_frontier import Frontier
from .pairing_rows import LOW, NEVER, NONE, RESUME, WAIT, Array, Events, I64, Rows, join, nothing, take
from .stored import arrival_to_order
from .tables import WAITS


@dataclass
class WaitCounts:
    """What pairing met so far: waits, rows that were there twice, and waits with one of their events lost."""

    waits: int = 0
    duplicates: int = 0
    missing_wait: int = 0
    missing_resume: int = 0


class WaitPairer:
    """Pairs wait and resume. hooks: those that are recorded, so that only their events are missed."""

    def __init__(self, frontier: Frontier, hooks: frozenset[int]) -> None:
        self._frontier, self._hooks = frontier, hooks
        self.open: Rows = nothing()
        """The last wait of each worker that has not resumed."""
        self.counts = WaitCounts()

    def feed(self, events: Events) -> pa.Table:
        """The waits that this part decides, as `WAITS`."""
        new, _ = events.of_hooks(WAIT, RESUME)
        rows = join([self.open, new])
        if (order := arrival_to_order(rows)) is not None:
            rows = take(rows, order)
        rows = self._without_duplicates(rows)
        waits = rows["hook"] == WAIT
        follows = _same_worker(rows)
        resumed = np.flatnonzero(waits[:-1] & ~waits[1:] & follows & _agree(rows))
        last = np.ones(len(waits), np.bool_)
        last[:-1] = ~follows
        is_open = np.flatnonzero(waits & last)
        alone = np.ones(len(waits), np.bool_)
        alone[resumed] = alone[resumed + 1] = alone[is_open] = False
        self.open = take(rows, is_open)
        unresumed, begun_unseen = np.flatnonzero(alone & waits), np.flatnonzero(alone & ~waits)
        none = np.full(len(unresumed), -1), np.full(len(begun_unseen), -1)
        return self._table(
            rows,
            np.concatenate([resumed, unresumed, none[1]]),
            np.concatenate([resumed + 1, none[0], begun_unseen]),
        )

    def finish(self) -> pa.Table:
        """The waits that are left: without end."""
        rows, self.open = self.open, nothing()
        begun = np.arange(len(rows["t"]))
        worker = rows["worker"]
        inside = (worker >= 0) & (worker < len(self._frontier.last))
        silent = inside & (self._frontier.last[np.where(inside, worker, 0)] <= rows["t"])
        return self._table(rows, begun, np.full(len(begun), -1), silent)

    def _without_duplicates(self, rows: Rows) -> Rows:
        again = np.zeros(len(rows["t"]), np.bool_)
        again[1:] = _same_worker(rows)
        for name in ("seq", "t", "hook"):
            again[1:] &= rows[name][1:] == rows[name][:-1]
        if not again.any():
            return rows
        self.counts.duplicates += int(again.sum())
        return take(rows, np.flatnonzero(~again))

    def _table(self, rows: Rows, begun: I64, ended: I64, silent: Array | None = None) -> pa.Table:
        """The waits whose wait and resume rows stand at two places (-1: none), in order of begin, end, rank, worker.

        silent: which of them still went on when the recording ended.
        """
        seen, over = begun >= 0, ended >= 0
        either = np.where(seen, begun, ended)
        since = rows["extra"][ended] if len(either) else np.empty(0, np.int64)
        end = np.where(over, rows["t"][ended], 0) if len(either) else np.empty(0, np.int64)
        begin = np.where(seen, rows["t"][either], end - since)
        known = seen | (over & (since != NONE))
        rank, worker = rows["rank"][either], rows["worker"][either]
        task, dep = rows["task"][either], rows["dep"][either]
        keys = (dep, task, worker, rank, np.where(over, end, NEVER), np.where(known, begin, NEVER))
        order = np.argsort(keys[-1], kind="stable")
        by_begin = keys[-1][order]
        if (tied := by_begin[1:] == by_begin[:-1]).any():
            # Only where several begin at one time must more be compared.
            among = np.flatnonzero(np.concatenate([tied, [False]]) | np.concatenate([[False], tied]))
            order[among] = order[among][np.lexsort(tuple(k[order[among]] for k in keys))]
        counters = rows["extra"][either]
        missing = np.where(~seen, 1, 0) if WAIT in self._hooks else np.zeros(len(either), np.int64)
        missing |= np.where(~over, 2, 0) if RESUME in self._hooks else 0
        self.counts.waits += len(either)
        self.counts.missing_wait += int(np.count_nonzero(missing & 1))
        self.counts.missing_resume += int(np.count_nonzero(missing & 2))
        columns: dict[str, Array | tuple[Array, Array]] = {
            "rank": rank,
            "worker": worker,
            "task": task,
            "task_class": rows["task_class"][either],
            "dep": dep,
            "dep_class": rows["dep_class"][either],
            "t_begin": (begin, known),
            "t_end": (end, over),
            "ns": (end - begin, known & over),
            "seen": (counters >> 32 & LOW, seen),
            "wanted": (counters & LOW, seen),
            "request": rows["request"][either],
            "step": rows["step"][either],
            "missing": missing.astype(np.int16),
            "open": silent if silent is not None else np.zeros(len(either), np.bool_),
        }
        return as_table(
            WAITS,
            {n: (c[0][order], c[1][order]) if isinstance(c, tuple) else c[order] for n, c in columns.items()},
        )


def _same_worker(rows: Rows) -> Array:
    """Of each row but the first: is it of the same worker as the one before?"""
    same: Array = rows["worker"][1:] == rows["worker"][:-1]
    return same & (rows["rank"][1:] == rows["rank"][:-1])


def _agree(rows: Rows) -> Array:
    """Of each row but the last: does the next, a resume, tell of this wait?"""
    since = rows["extra"][1:]
    same = (rows["task"][1:] == rows["task"][:-1]) & (rows["dep"][1:] == rows["dep"][:-1])
    return np.where(since == NONE, same, rows["t"][1:] - since == rows["t"][:-1])
