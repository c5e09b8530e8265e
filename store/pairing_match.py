"""Which rows make up one task: rows of the same identity, cut into records.

The identity is (rank, task). A runtime that repeats identities (an iteration that stays 0, a restarted engine) or
that fires a hook twice must not have two executions mixed into one. So in order of (t, hook, worker, seq) a record
takes a row of its identity unless it has one of that hook already or its complete lies more than `GRACE_NS` back;
such a row begins the next record. That depends on the rows alone and not on the parts they came in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pairing_rows import COMPLETE, LOW, NEVER, NONE, READY, Array, Rows

GRACE_NS = 10_000
"""How long after its complete an event still belongs to a task: workers' clocks differ by less than 1 µs."""

_HOOKS = 4
_DENSE = 4
"""Codes may be this many times as many as rows before they are made dense by sorting."""

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


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
        low, extent = self._low, self._extent
        if extent[1] == 1:
            return (iteration - low[0]) * extent[2] + (index - low[2])
        return ((iteration - low[0]) * extent[1] + (rank.astype(np.int64) - low[1])) * extent[2] + (index - low[2])

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


@dataclass
class Records:
    """Tasks as places of their rows: at [4, tasks], the row of each hook or -1.

    next_t: t of the first row of the identity's next record. of_row: the record of each row, -1 for a duplicate.
    """

    at: I32
    next_t: I64
    of_row: I32
    duplicates: int
    ordered: bool
    """Records stand in order of identity and, of one identity, of time."""

    def times(self, rows: Rows, hook: int) -> I64:
        """t of each record's event of a hook; NEVER where it has none."""
        return at_or(rows["t"], self.at[hook - 1], NEVER)


def at_or(column: Array, at: I32, otherwise: int) -> Array:
    """Values of the column at places; `otherwise` where the place is -1."""
    if not len(column):
        return np.full(len(at), otherwise, column.dtype)
    return np.where(at >= 0, column[at], otherwise)


def match(rows: Rows, code: I64, size: int) -> Records:
    """Put rows of ready, assign, start and complete together by identity (`code`, below `size`)."""
    n = len(code)
    hook = rows["hook"]
    at = np.full((_HOOKS, size), -1, np.int32)
    present = np.zeros(size, np.bool_)
    odd = np.zeros(size, np.bool_)
    for h in range(READY, COMPLETE + 1):
        here = np.flatnonzero(hook == h).astype(np.int32)
        groups = code[here]
        place = at[h - 1]
        place[groups] = here
        present[groups] = True
        odd[groups[place[groups] != here]] = True
    which = np.flatnonzero(present)
    at = at[:, which]
    done = at_or(rows["t"], at[COMPLETE - 1], NEVER)
    for h in range(READY, COMPLETE):
        late = at_or(rows["t"], at[h - 1], NONE) > _plus(done, GRACE_NS)
        odd[which[late]] = True
    number = np.full(size, -1, np.int32)
    is_odd = odd[which]
    if not is_odd.any():
        number[which] = np.arange(len(which))
        return Records(at, np.full(len(which), NEVER), number[code] if n else np.empty(0, np.int32), 0, True)
    at = at[:, ~is_odd]
    number[which[~is_odd]] = np.arange(at.shape[1])
    of_row = number[code]
    return _cut(rows, code, np.flatnonzero(odd[code]), at, of_row)


def _plus(t: I64, ns: int) -> I64:
    """t + ns, NEVER at the most."""
    return np.minimum(t, NEVER - ns) + ns


def _cut(rows: Rows, code: I64, picked: I64, at: I32, of_row: I32) -> Records:
    """Records of the identities that make more than one, one row after the other; `at` has the others already."""
    order = picked[
        np.lexsort((rows["seq"][picked], rows["worker"][picked], rows["hook"][picked], rows["t"][picked], code[picked]))
    ]
    columns = [rows[n][order].tolist() for n in ("t", "hook", "worker", "seq")]
    new: list[list[int]] = []
    next_t: list[int] = []
    number: list[int] = []
    last: tuple[int, int, int, int, int] | None = None
    duplicates, first = 0, at.shape[1]
    done = 0
    for i, group, t, hook, worker, seq in zip(order.tolist(), code[order].tolist(), *columns, strict=True):
        this = (group, t, hook, worker, seq)
        if this == last:
            duplicates += 1
            number.append(-1)
            continue
        same = last is not None and last[0] == group
        if not same or new[-1][hook - 1] >= 0 or (new[-1][COMPLETE - 1] >= 0 and t > done + GRACE_NS):
            if same:
                next_t[-1] = t
            new.append([-1, -1, -1, -1])
            next_t.append(NEVER)
        new[-1][hook - 1] = i
        if hook == COMPLETE:
            done = t
        number.append(first + len(new) - 1)
        last = this
    of_row[order] = number
    after = np.concatenate([np.full(first, NEVER), np.array(next_t, np.int64)])
    return Records(np.hstack([at, np.array(new, np.int32).T]), after, of_row, duplicates, False)
