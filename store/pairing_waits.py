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
from .pairing_rows import I64, LOW, NEVER, NONE, RESUME, WAIT, Array, At, Bools, Events, Rows, nothing, order_of, pick
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
        self.last: Rows = nothing()
        """Each worker's last wait or resume row."""
        self.counts = WaitCounts()

    def feed(self, events: Events) -> pa.Table:
        """The waits that this part decides, as `WAITS`."""
        events.carry(self.last)
        places = self._without_duplicates(events, _in_order(events))
        rows = events.at(places)
        waits = rows["hook"] == WAIT
        follows = np.zeros(len(places), np.bool_)
        follows[:-1] = _same_worker(rows)
        resumed = np.flatnonzero(waits[:-1] & ~waits[1:] & follows[:-1])
        resumed = resumed[_agree(events.at(places[resumed]), events.at(places[resumed + 1]))]
        has_end = np.zeros(len(places), np.bool_)
        has_end[resumed] = True
        told = np.zeros(len(places), np.bool_)
        told[1:] = has_end[:-1]
        is_open = waits & ~follows
        # A resume that was carried over is there only so that its duplicate is known as one.
        first = np.flatnonzero(np.where(waits, ~is_open, ~told & (places < events.count)))
        begun = np.where(waits[first], places[first], -1)
        # Of a wait that is followed the next row exists; of a lone resume it is the row itself.
        over = np.where(has_end[first], places[np.minimum(first + 1, len(places) - 1)], -1)
        table = self._table(events, begun, np.where(waits[first], over, places[first]))
        self.last = events.at(places[~follows]).rows()
        return table

    def finish(self) -> pa.Table:
        """The waits that are left: without end."""
        rows = pick(self.last, np.flatnonzero(self.last["hook"] == WAIT))
        self.last = nothing()
        events = Events(None, rows)
        begun = np.arange(len(rows["t"]))
        worker = rows["worker"]
        inside = (worker >= 0) & (worker < len(self._frontier.last))
        silent = inside & (self._frontier.last[np.where(inside, worker, 0)] <= rows["t"])
        return self._table(events, begun, np.full(len(begun), -1), silent)

    def _without_duplicates(self, events: Events, places: I64) -> I64:
        rows = events.at(places)
        again = _same_worker(rows)
        for name in ("seq", "t", "hook"):
            values = rows[name]
            again &= values[1:] == values[:-1]
            if not again.any():
                return places
        self.counts.duplicates += int(again.sum())
        kept: I64 = places[np.concatenate([[True], ~again])]
        return kept

    def _table(self, events: Events, begun: I64, ended: I64, silent: Bools | None = None) -> pa.Table:
        """The waits whose wait and resume rows stand at two places (-1: none), given in order of rank, worker, seq.

        They come out in order of begin (nulls last), rank, worker, seq. silent: which of them still went on when the
        recording ended.
        """
        order = order_of(_begin(events, begun, ended))
        begun, ended = begun[order], ended[order]
        begin = _begin(events, begun, ended)
        known, seen, over = begin != NEVER, begun >= 0, ended >= 0
        end = events.at(ended)["t"]
        either = events.at(np.where(seen, begun, ended))
        counters = either["aux"]
        missing = np.zeros(len(begun), np.int16)
        if WAIT in self._hooks:
            missing |= (~seen).astype(np.int16)
        if RESUME in self._hooks:
            missing |= (~over).astype(np.int16) << 1
        self.counts.waits += len(begun)
        self.counts.missing_wait += int(np.count_nonzero(missing & 1))
        self.counts.missing_resume += int(np.count_nonzero(missing & 2))
        columns: dict[str, Array | tuple[Array, Bools]] = {
            n: either[n] for n in ("rank", "worker", "task", "task_class", "dep", "dep_class", "request", "step")
        }
        columns |= {
            "t_begin": (begin, known),
            "t_end": (end, over),
            "ns": (end - begin, known & over),
            "seen": (counters >> 32 & LOW, seen),
            "wanted": (counters & LOW, seen),
            "missing": missing,
            "open": np.zeros(len(begun), np.bool_) if silent is None else silent[order],
        }
        return as_table(WAITS, columns)


def _begin(events: Events, begun: I64, ended: I64) -> I64:
    """When waits began, from the resume row where there is no other; NEVER where that does not say."""
    rows = events.at(ended)
    since = rows.since()
    carried = np.where((ended >= 0) & (since != NONE), rows["t"] - since, NEVER)
    return np.where(begun >= 0, events.at(begun)["t"], carried)


def _in_order(events: Events) -> I64:
    """Places of all wait and resume rows in order of (rank, worker, seq): what is carried before the part's."""
    hook = events.part["hook"]
    places = np.flatnonzero((hook == WAIT) | (hook == RESUME))
    rows = events.at(places)
    who, seq = _who(rows), rows["seq"]
    if not ((who[1:] > who[:-1]) | (who[1:] == who[:-1]) & (seq[1:] >= seq[:-1])).all():
        order = np.lexsort((seq, who))
        places, who = places[order], who[order]
    carried = np.arange(len(events.carried["t"])) + events.count
    return np.insert(places, np.searchsorted(who, _who(events.at(carried))), carried)


def _who(rows: At) -> I64:
    who: I64 = rows["rank"].astype(np.int64) << 32 | rows["worker"]
    return who


def _same_worker(rows: At) -> Bools:
    """Of each row but the first: is it of the same worker as the one before?"""
    who = _who(rows)
    same: Bools = who[1:] == who[:-1]
    return same


def _agree(begun: At, ended: At) -> Bools:
    """Do the resume rows tell of the wait rows beside them?"""
    since = ended.since()
    agree: Bools = ended["t"] - since == begun["t"]
    unknown = np.flatnonzero(since == NONE)
    if len(unknown):
        same = (begun["task"] == ended["task"]) & (begun["dep"] == ended["dep"])
        agree[unknown] = same[unknown]
    return agree
