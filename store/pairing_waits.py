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
from .pairing_rows import I64, LOW, NEVER, NONE, RESUME, WAIT, Array, Bools, Events, Rows, nothing
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
        events.carry(self.open)
        places = self._without_duplicates(events, _in_order(events))
        hook = events.take("hook", places)
        same = _same_worker(events, places)
        waits = hook == WAIT
        resumed = np.flatnonzero(waits[:-1] & ~waits[1:] & same)
        resumed = resumed[_agree(events, places[resumed], places[resumed + 1])]
        last = np.ones(len(places), np.bool_)
        last[:-1] = ~same
        is_open = waits & last
        alone = ~is_open
        alone[resumed] = alone[resumed + 1] = False
        unresumed, begun_unseen = places[alone & waits], places[alone & ~waits]
        begun = np.concatenate([places[resumed], unresumed, np.full(len(begun_unseen), -1)])
        ended = np.concatenate([places[resumed + 1], np.full(len(unresumed), -1), begun_unseen])
        table = self._table(events, begun, ended)
        self.open = events.rows(places[is_open])
        return table

    def finish(self) -> pa.Table:
        """The waits that are left: without end."""
        events = Events(None, self.open)
        begun = np.arange(len(self.open["t"]))
        worker = self.open["worker"]
        inside = (worker >= 0) & (worker < len(self._frontier.last))
        silent = inside & (self._frontier.last[np.where(inside, worker, 0)] <= self.open["t"])
        self.open = nothing()
        return self._table(events, begun, np.full(len(begun), -1), silent)

    def _without_duplicates(self, events: Events, places: I64) -> I64:
        again = np.zeros(len(places), np.bool_)
        again[1:] = _same_worker(events, places)
        for name in ("seq", "t", "hook"):
            values = events.take(name, places)
            again[1:] &= values[1:] == values[:-1]
            if not again.any():
                return places
        self.counts.duplicates += int(again.sum())
        return places[~again]

    def _table(self, events: Events, begun: I64, ended: I64, silent: Bools | None = None) -> pa.Table:
        """The waits whose wait and resume rows stand at two places (-1: none).

        In order of begin (nulls last), end (nulls last), rank, worker, task, dep. silent: which of them still went on
        when the recording ended.
        """
        seen, over = begun >= 0, ended >= 0
        since = events.since(ended)
        end = events.take("t", ended)
        begin = np.where(seen, events.take("t", begun), end - since)
        known = seen | (since != NONE)
        either = np.where(seen, begun, ended)
        by_begin = np.where(known, begin, NEVER)
        order = np.argsort(by_begin, kind="stable")
        by_begin = by_begin[order]
        if (tied := by_begin[1:] == by_begin[:-1]).any():
            # Only where several begin at one time must more be compared.
            among = np.flatnonzero(np.concatenate([tied, [False]]) | np.concatenate([[False], tied]))
            these = order[among]
            keys = [events.take(n, either[these]) for n in ("dep", "task", "worker", "rank")]
            keys += [np.where(over[these], end[these], NEVER), by_begin[among]]
            order[among] = these[np.lexsort(tuple(keys))]
        begin, end, known, seen, over, either = (a[order] for a in (begin, end, known, seen, over, either))
        counters = events.take("aux", either)
        missing = np.zeros(len(either), np.int16)
        if WAIT in self._hooks:
            missing |= (~seen).astype(np.int16)
        if RESUME in self._hooks:
            missing |= (~over).astype(np.int16) << 1
        self.counts.waits += len(either)
        self.counts.missing_wait += int(np.count_nonzero(missing & 1))
        self.counts.missing_resume += int(np.count_nonzero(missing & 2))
        columns: dict[str, Array | tuple[Array, Bools]] = {
            n: events.take(n, either)
            for n in ("rank", "worker", "task", "task_class", "dep", "dep_class", "request", "step")
        }
        columns |= {
            "t_begin": (begin, known),
            "t_end": (end, over),
            "ns": (end - begin, known & over),
            "seen": (counters >> 32 & LOW, seen),
            "wanted": (counters & LOW, seen),
            "missing": missing,
            "open": np.zeros(len(either), np.bool_) if silent is None else silent[order],
        }
        return as_table(WAITS, columns)


def _in_order(events: Events) -> I64:
    """Places of all wait and resume rows in order of (rank, worker, seq): what is carried before the part's."""
    hook = events.part["hook"]
    places = np.flatnonzero((hook == WAIT) | (hook == RESUME))
    who = _who(events, places)
    seq = events.take("seq", places)
    first = np.ones(len(places), np.bool_)
    first[1:] = who[1:] != who[:-1]
    if not ((who[1:] > who[:-1]) | ~first[1:] & (seq[1:] >= seq[:-1])).all():
        places = places[np.lexsort((seq, who))]
        who = _who(events, places)
    carried = np.arange(len(events.carried["t"])) + events.count
    return np.insert(places, np.searchsorted(who, _who(events, carried)), carried)


def _who(events: Events, places: I64) -> I64:
    return events.take("rank", places).astype(np.int64) << 32 | events.take("worker", places)


def _same_worker(events: Events, places: I64) -> Bools:
    """Of each row but the first: is it of the same worker as the one before?"""
    who = _who(events, places)
    same: Bools = who[1:] == who[:-1]
    return same


def _agree(events: Events, begun: I64, ended: I64) -> Bools:
    """Do the resume rows tell of the wait rows beside them?"""
    since = events.since(ended)
    agree: Bools = events.take("t", ended) - since == events.take("t", begun)
    unknown = np.flatnonzero(since == NONE)
    if len(unknown):
        agree[unknown] = True
        for name in ("task", "dep"):
            agree[unknown] &= events.take(name, begun[unknown]) == events.take(name, ended[unknown])
    return agree
