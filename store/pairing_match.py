"""Which rows make up one task: rows of the same identity, cut into records.

The identity is (rank, task). A runtime that repeats identities (an iteration that stays 0, a restarted engine) or
that fires a hook twice must not have two executions mixed into one. So in order of (t, hook, worker, seq) a record
takes a row of its identity unless it has one of that hook already or its complete lies more than `GRACE_NS` back;
such a row begins the next record. That depends on the rows alone and not on the parts they came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pairing_rows import COMPLETE, I64, LOW, NEVER, NONE, TASK_HOOKS, Array, Events

GRACE_NS = 10_000
"""How long after its complete an event still belongs to a task: workers' clocks differ by less than 1 µs."""

_DENSE = 4
"""Codes may be this many times as many as rows before they are made dense by sorting."""

I32 = npt.NDArray[np.int32]


class Groups:
    """A code for every identity among some rows: `code` of each row, all below `size`, ascending by `order`.

    Identities of a part are nearly consecutive (some iterations, all their tasks), so a code is computed and not
    searched, unless that would leave most codes without rows.
    """

    def __init__(self, rank: Array, task: Array) -> None:
        iteration, index = task >> 32, task & LOW
        self.dense = False
        self.size = 0
        self.code: I64 = np.empty(0, np.int64)
        self._known: dict[tuple[int, int], int] | None = None
        if not len(task):
            return
        self._low = (int(iteration.min()), int(rank.min()), int(index.min()))
        self._high = (int(iteration.max()), int(rank.max()), int(index.max()))
        self._extent = tuple(h - low + 1 for low, h in zip(self._low, self._high, strict=True))
        size = self._extent[0] * self._extent[1] * self._extent[2]
        if size <= _DENSE * len(task) + 4096:
            self.dense, self.size = True, size
            self.code = self._packed(iteration, rank, index)
            self._present = np.zeros(size, np.bool_)
            self._present[self.code] = True
            return
        order = np.lexsort((index, rank, iteration))
        first = np.ones(len(task), np.bool_)
        first[1:] = (task[order][1:] != task[order][:-1]) | (rank[order][1:] != rank[order][:-1])
        self.code = np.empty(len(task), np.int64)
        self.code[order] = np.cumsum(first) - 1
        self.size = int(first.sum())
        by_task = order[np.flatnonzero(first)]
        self._tasks, self._ranks = task[by_task], rank[by_task]

    def _packed(self, iteration: Array, rank: Array, index: Array) -> I64:
        above = iteration - self._low[0]
        if self._extent[1] > 1:
            above = above * self._extent[1] + (rank.astype(np.int64) - self._low[1])
        code: I64 = above * self._extent[2] + (index - self._low[2])
        return code

    def identity(self, code: I64) -> tuple[Array, I64]:
        """(rank, task) of codes."""
        if not self.size:
            return np.empty(0, np.int16), np.empty(0, np.int64)
        if not self.dense:
            return self._ranks[code], self._tasks[code]
        above, index = np.divmod(code, self._extent[2])
        iteration, rank = np.divmod(above, self._extent[1])
        task = (iteration + self._low[0]) << 32 | (index + self._low[2])
        return (rank + self._low[1]).astype(np.int16), task

    def may_have(self, low: int, high: int) -> bool:
        """Can an iteration from `low` to `high` be among the rows?"""
        return bool(self.size) and low <= self._high[0] and high >= self._low[0]

    def find(self, rank: Array, task: Array) -> I64:
        """The codes of other rows; -1 where no row here has that identity."""
        found = np.full(len(task), -1, np.int64)
        if not self.size:
            return found
        iteration, index = task >> 32, task & LOW
        inside = np.ones(len(task), np.bool_)
        for values, low, high in zip((iteration, rank, index), self._low, self._high, strict=True):
            inside &= (values >= low) & (values <= high)
        near = np.flatnonzero(inside)
        if self.dense:
            code = self._packed(iteration[near], rank[near], index[near])
            found[near] = np.where(self._present[code], code, -1)
            return found
        if len(near):
            if self._known is None:
                keys = zip(self._ranks.tolist(), self._tasks.tolist(), strict=True)
                self._known = {key: i for i, key in enumerate(keys)}
            wanted = zip(rank[near].tolist(), task[near].tolist(), strict=True)
            found[near] = [self._known.get(key, -1) for key in wanted]
        return found


Entries = tuple[I64, I64]
"""Places of rows and the codes of their identities; a range row's place stands beside several codes."""


@dataclass
class Records:
    """Tasks as places of their rows: at [4, tasks], the row of each hook or -1.

    code: identity. next_t: t of the first row of the identity's next record, NEVER where there is none. done: t of
    complete, NEVER where there is none. ordered: they stand in order of identity.
    """

    at: I64
    code: I64
    next_t: I64
    done: I64
    duplicates: int
    ordered: bool


def match(events: Events, entries: Sequence[Entries], size: int) -> Records:
    """Put rows together by identity. entries: of ready, assign, start and complete; codes are below `size`."""
    at = np.full((len(TASK_HOOKS), size), -1, np.int64)
    odd = np.zeros(size, np.bool_)
    for (places, code), row in zip(entries, at, strict=True):
        row[code] = places
        odd[code[row[code] != places]] = True
    present = (at >= 0).any(axis=0)
    code = np.flatnonzero(present)
    if len(code) < size:
        at = at[:, code]
    # A range row may stand twice for one task at the same place, which is a duplicate like any other.
    done = _times(events, at[COMPLETE - 1], NEVER)
    limit = np.minimum(done, NEVER - GRACE_NS) + GRACE_NS
    for row in at[: COMPLETE - 1]:
        odd[code[_times(events, row, NONE) > limit]] = True
    is_odd = odd[code]
    if not is_odd.any():
        return Records(at, code, np.full(len(code), NEVER), done, 0, True)
    even = np.flatnonzero(~is_odd)
    several, duplicates = _cut(events, entries, odd)
    cut_done = _times(events, several.at[COMPLETE - 1], NEVER)
    return Records(
        np.hstack([at[:, even], several.at]),
        np.concatenate([code[even], several.code]),
        np.concatenate([np.full(len(even), NEVER), several.next_t]),
        np.concatenate([done[even], cut_done]),
        duplicates,
        False,
    )


def _times(events: Events, places: I64, otherwise: int) -> I64:
    t: I64 = events.at(places)["t"]
    t[places < 0] = otherwise
    return t


@dataclass
class _Cut:
    at: I64
    code: I64
    next_t: I64


def _cut(events: Events, entries: Sequence[Entries], odd: Array) -> tuple[_Cut, int]:
    """The records of the identities that are `odd`, one row after the other; and how many rows were there twice."""
    picked = [(places[odd[code]], code[odd[code]]) for places, code in entries]
    places = np.concatenate([p for p, _ in picked])
    code = np.concatenate([c for _, c in picked])
    hook = np.repeat(TASK_HOOKS, [len(p) for p, _ in picked])
    rows = events.at(places)
    t, worker, seq = rows["t"], rows["worker"], rows["seq"]
    order = np.lexsort((seq, worker, hook, t, code))
    new: list[list[int]] = []
    codes: list[int] = []
    next_t: list[int] = []
    last: tuple[int, ...] | None = None
    duplicates = done = 0
    columns = (column[order].tolist() for column in (places, code, t, hook, worker, seq))
    for place, *this_row in zip(*columns, strict=True):
        this = tuple(this_row)
        if this == last:
            duplicates += 1
            continue
        group, now, h = this[:3]
        same = last is not None and last[0] == group
        if not same or new[-1][h - 1] >= 0 or (new[-1][COMPLETE - 1] >= 0 and now > done + GRACE_NS):
            if same:
                next_t[-1] = now
            new.append([-1] * len(TASK_HOOKS))
            codes.append(group)
            next_t.append(NEVER)
        new[-1][h - 1] = place
        if h == COMPLETE:
            done = now
        last = this
    return _Cut(np.array(new, np.int64).T, np.array(codes, np.int64), np.array(next_t, np.int64)), duplicates
