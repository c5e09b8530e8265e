"""Tasks from their events, part by part.

What is not decided yet is carried over as rows, never as half-made tasks, so that a task is a function of its rows
however they were cut into parts. A task is decided when everything up to `GRACE_NS` after its complete has arrived.
One without complete stays open, cheaply, until an event of it comes, the recording ends or too many are open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from .pairing_columns import task_table
from .pairing_frontier import Frontier
from .pairing_match import GRACE_NS, Groups, match
from .pairing_open import OPEN_MOST, OpenRows
from .pairing_rows import COMPLETE, LOW, NEVER, NONE, READY, Events, I64, Rows, expanded, join, nothing, take
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
    missing: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(READY, COMPLETE + 1), 0))
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
        new, flags = events.of_hooks(READY, COMPLETE)
        new, impossible = expanded(new, flags)
        self.counts.impossible_ranges += impossible
        rows = join([self.held, new])
        groups = Groups(rows["rank"], rows["task"])
        code = groups.code
        if groups.size:
            iteration = rows["task"] >> 32
            pulled, codes = self.open.pull(groups, (int(iteration.min()), int(iteration.max())))
            rows, code = join([rows, pulled]), np.concatenate([code, codes])
        return self._decide(rows, code, groups.size, last=False)

    def finish(self) -> pa.Table:
        """All tasks that are left, whatever of them is missing."""
        rows = join([self.held, self.open.take_all()])
        self.held = nothing()
        groups = Groups(rows["rank"], rows["task"])
        return self._decide(rows, groups.code, groups.size, last=True)

    def _decide(self, rows: Rows, code: I64, size: int, *, last: bool) -> pa.Table:
        found = match(rows, code, size)
        self.counts.duplicates += found.duplicates
        done = found.times(rows, COMPLETE)
        if last:
            decided = np.ones(len(done), np.bool_)
        else:
            self._hurry(done)
            decided = (done < max(self._frontier.t, NONE + GRACE_NS) - GRACE_NS) | (found.next_t < self._frontier.t)
        tables = [task_table(rows, found.at[:, decided], self._hooks, given_up=False, ordered=found.ordered)]
        left = np.flatnonzero((found.of_row >= 0) & ~_at(decided, found.of_row))
        waits = _at((done != NEVER) | (found.next_t != NEVER), found.of_row[left])
        self.held = take(rows, left[waits])
        given_up = self.open.put(take(rows, left[~waits]))
        if len(given_up["t"]):
            groups = Groups(given_up["rank"], given_up["task"])
            found = match(given_up, groups.code, groups.size)
            tables.append(task_table(given_up, found.at, self._hooks, given_up=True, ordered=found.ordered))
            self.counts.given_up += tables[-1].num_rows
        table = tables[0] if len(tables) == 1 else merged(tables)
        self._count(table)
        return table

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
    start = table["start"].fill_null(NEVER).to_numpy()
    order = np.lexsort((task & LOW, table["rank"].to_numpy(), task >> 32, start))
    return table.take(pa.array(order)).cast(TASKS.schema)


def _at(values: np.ndarray, places: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return values[places] if len(values) else np.zeros(len(places), np.bool_)
