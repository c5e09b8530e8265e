"""Tasks from their events, part by part.

What is not decided yet is carried over as rows, never as half-made tasks, so that a task is a function of its rows
however they were cut into parts. A task is decided when everything up to `GRACE_NS` after its complete has arrived.
One without complete stays open, cheaply, until an event of it comes, the recording ends or too many are open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .pairing_columns import task_table
from .pairing_frontier import Frontier
from .pairing_match import GRACE_NS, Entries, Groups, Records, match
from .pairing_open import OPEN_MOST, OpenRows
from .pairing_rows import I64, LOW, NEVER, NONE, TASK_HOOKS, Bools, Events, Rows, join, nothing
from .tables import TASKS

HELD_MOST = 1 << 18
"""Tasks that have completed and wait for the frontier; beyond, the earliest are decided without waiting longer."""


@dataclass
class TaskCounts:
    """What pairing met so far, in rows of events (duplicates, impossible ranges) and in tasks."""

    tasks: int = 0
    duplicates: int = 0
    impossible_ranges: int = 0
    given_up: int = 0
    hurried: int = 0
    missing: dict[int, int] = field(default_factory=lambda: dict.fromkeys(TASK_HOOKS, 0))
    """By hook: expected events that were not recorded."""


class TaskPairer:
    """Pairs ready, assign, start and complete. hooks: those that are recorded, so that only their events are missed."""

    def __init__(
        self, frontier: Frontier, hooks: frozenset[int], *, open_most: int = OPEN_MOST, held_most: int = HELD_MOST
    ) -> None:
        self._frontier, self._hooks, self._held_most = frontier, hooks, held_most
        self.open = OpenRows(open_most)
        self.held: Rows = nothing()
        """Rows of tasks that completed and of which more may come."""
        self.counts = TaskCounts()

    def feed(self, events: Events) -> pa.Table:
        """The tasks that this part decides, as `TASKS`. The frontier has seen the part."""
        found, groups = self._put_together(events)
        return self._decide(events, found, groups, last=False)

    def _put_together(self, events: Events) -> tuple[Records, Groups]:
        """Records of a part's rows and of those that were carried over to it, and their identities."""
        found = [events.of_hook(h) for h in TASK_HOOKS]
        self.counts.impossible_ranges += sum(impossible for _, _, impossible in found)
        held = self.held
        places = np.concatenate([p for p, _, _ in found] + [np.arange(len(held["t"])) + events.count])
        task = np.concatenate([t for _, t, _ in found] + [held["task"]])
        events.carry(held)
        groups = Groups(events.at(places)["rank"], task)
        ends = np.cumsum([len(p) for p, _, _ in found])
        parts = np.split(groups.code, ends)
        pulled, codes = self.open.pull(groups)
        carried = join([held, pulled])
        events.carry(carried)
        behind = _by_hook(carried, np.concatenate([parts[-1], codes]), events.count)
        entries = [
            (np.concatenate([places, more]), np.concatenate([code, more_codes]))
            for (places, _, _), code, (more, more_codes) in zip(found, parts, behind, strict=False)
        ]
        return match(events, entries, groups.size), groups

    def finish(self) -> pa.Table:
        """All tasks that are left, whatever of them is missing."""
        events, entries, groups = _alone(join([self.held, self.open.take_all()]))
        return self._decide(events, match(events, entries, groups.size), groups, last=True)

    def _decide(self, events: Events, found: Records, groups: Groups, *, last: bool) -> pa.Table:
        self.counts.duplicates += found.duplicates
        if last:
            decided = np.ones(len(found.done), np.bool_)
        else:
            self._hurry(found.done)
            before = self._frontier.t
            decided = (found.done < max(before, NONE + GRACE_NS) - GRACE_NS) | (found.next_t < before)
        tables = [self._table(events, found, groups, decided, given_up=False)]
        waits = ~decided & ((found.done != NEVER) | (found.next_t != NEVER))
        self.held = _rows_of(events, found, groups, waits)
        given_up = self.open.put(_rows_of(events, found, groups, ~decided & ~waits))
        if len(given_up["t"]):
            events, entries, groups = _alone(given_up)
            found = match(events, entries, groups.size)
            tables.append(self._table(events, found, groups, np.ones(len(found.done), np.bool_), given_up=True))
            self.counts.given_up += tables[-1].num_rows
        table = tables[0] if len(tables) == 1 else merged(tables)
        self._count(table)
        return table

    def _table(self, events: Events, found: Records, groups: Groups, which: Bools, *, given_up: bool) -> pa.Table:
        rank, task = groups.identity(found.code[which])
        at = found.at[:, which]
        return task_table(events, at, rank, task, self._hooks, given_up=given_up, ordered=found.ordered)

    def _hurry(self, done: I64) -> None:
        """Raise the frontier when more tasks wait for it than may: because a worker is silent, or time jumps."""
        waiting = done[(done >= self._frontier.t - min(GRACE_NS, self._frontier.t - NONE)) & (done != NEVER)]
        excess = len(waiting) - self._held_most
        if excess > 0:
            # Half of them, so that it is not the same again with the next part.
            excess += self._held_most // 2
            self.counts.hurried += excess
            at = int(np.partition(waiting, excess - 1)[excess - 1])
            self._frontier.raise_to(min(at, NEVER - GRACE_NS - 1) + GRACE_NS + 1)

    def _count(self, table: pa.Table) -> None:
        self.counts.tasks += table.num_rows
        missing = table["missing"].to_numpy()
        if missing.any():
            for hook in self.counts.missing:
                self.counts.missing[hook] += int(np.count_nonzero(missing & (1 << (hook - 1))))


def merged(tables: list[pa.Table]) -> pa.Table:
    """Tables of tasks as one, in the order of `task_table`; of one identity in the order given."""
    table = pa.concat_tables(tables).combine_chunks()
    task = table["task"].to_numpy()
    start: Any = pc.fill_null(table["start"], pa.scalar(NEVER, pa.int64()))
    order = np.lexsort((task & LOW, table["rank"].to_numpy(), task >> 32, start.to_numpy()))
    return table.take(order).cast(TASKS.schema)


def _by_hook(rows: Rows, code: I64, first: int) -> list[Entries]:
    """Carried rows, the first at place `first`, by hook."""
    which = [np.flatnonzero(rows["hook"] == h) for h in TASK_HOOKS]
    return [(w + first, code[w]) for w in which]


def _alone(rows: Rows) -> tuple[Events, list[Entries], Groups]:
    """Carried rows with no part before them."""
    groups = Groups(rows["rank"], rows["task"])
    return Events(None, rows), _by_hook(rows, groups.code, 0), groups


def _rows_of(events: Events, found: Records, groups: Groups, which: Bools) -> Rows:
    """The rows of some records, by themselves; a range row becomes one of one task."""
    chosen = np.flatnonzero(which)
    if not len(chosen):
        return nothing()
    at = found.at[:, chosen]
    hook, record = np.nonzero(at >= 0)
    rows = events.at(at[hook, record]).rows()
    rows["task"] = groups.identity(found.code[chosen[record]])[1]
    return rows
