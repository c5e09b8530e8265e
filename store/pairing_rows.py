"""The rows that pairing works on: one part of the events, and behind it the rows that were carried over.

A part's columns are used where they are. A row is known by its place: its index in the part, or the part's length
plus its index among the carried rows; -1 stands for no row. So what is put together are places, and a column is
gathered once, for the rows that came out. A row that stands for several consecutive tasks has its place several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .tables import FLAG_RANGE, HOOK_BY_NAME, SINCE_MAX

READY, ASSIGN, START, COMPLETE, WAIT, RESUME = (
    HOOK_BY_NAME[n].id for n in ("ready", "assign", "start", "complete", "wait", "resume")
)
TASK_HOOKS = (READY, ASSIGN, START, COMPLETE)
LOW = 0xFFFF_FFFF
NONE: int = np.iinfo(np.int64).min
"""In `since_ns`: the row carries no time, or one too long ago to be exact."""
NEVER: int = np.iinfo(np.int64).max

RANGE_MOST = 1 << 20
"""A range row that stands for more tasks than this is not taken at its word."""
EXPAND_MOST = 1 << 21
"""All range rows of a hook in one part together stand for no more tasks; the rest is left out and counted."""

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Rows = dict[str, Array]
"""Columns of one length, of the types in `DTYPES`."""

DTYPES: dict[str, Any] = {
    "t": np.int64, "seq": np.int64, "task": np.int64, "since_ns": np.int64, "aux": np.int64, "request": np.int64,
    "step": np.int64, "dep": np.int64, "tile": np.int64, "task_class": np.int32, "worker": np.int32, "rank": np.int16,
    "hook": np.int16, "dep_class": np.int16,
}  # fmt: skip
_ARROW = {np.int64: pa.int64(), np.int32: pa.int32(), np.int16: pa.int16()}
SCHEMA = pa.schema([pa.field(n, _ARROW[d], nullable=False) for n, d in DTYPES.items()])
_NULL = {"since_ns": NONE, "aux": 0}
COLUMNS = (*DTYPES, "flags")
"""The columns of `EVENTS` that pairing reads."""
_TYPES: dict[str, Any] = DTYPES | {"flags": np.int16}


def nothing() -> Rows:
    return {n: np.empty(0, d) for n, d in DTYPES.items()}


def pick(rows: Rows, which: Array) -> Rows:
    return {n: column[which] for n, column in rows.items()}


def join(several: Sequence[Rows]) -> Rows:
    """Rows end to end."""
    several = [rows for rows in several if len(rows["t"])]
    if not several:
        return nothing()
    return several[0] if len(several) == 1 else {n: np.concatenate([r[n] for r in several]) for n in DTYPES}


def to_table(rows: Rows) -> pa.Table:
    return pa.table([pa.array(rows[n]) for n in DTYPES], schema=SCHEMA)


def from_table(table: pa.Table) -> Rows:
    """Rows that own their memory."""
    return {n: table[n].to_numpy().astype(d) for n, d in DTYPES.items()}


def columns_of(batches: Iterable[pa.RecordBatch], rows: int, scratch: Rows | None = None) -> Rows:
    """`COLUMNS` of batches of `EVENTS`, which have at most `rows` rows, end to end.

    Batches are taken one by one, so that no more than one of them is held beside the result. `scratch` keeps the
    memory from one call to the next; the last result is then overwritten.
    """
    columns = {} if scratch is None else scratch
    if "t" not in columns or len(columns["t"]) < rows:
        columns.clear()
        columns |= {n: np.empty(rows, _TYPES[n]) for n in COLUMNS}
    at = 0
    for batch in batches:
        end = at + batch.num_rows
        for name in COLUMNS:
            columns[name][at:end] = _values(batch.column(name), name)
        at = end
    return {name: column[:at] for name, column in columns.items()}


class Events:
    """A part of the events, as `columns_of` gives it, and the rows carried over to it.

    A range row's `tile` is a count, so its coordinates are not known: -1, in the columns given.
    """

    def __init__(self, part: Rows | None, carried: Rows | None = None) -> None:
        self.part = nothing() if part is None else {n: part[n] for n in DTYPES}
        self.count = len(self.part["t"])
        self._ranged: I64 = np.empty(0, np.int64)
        self._counts: I64 = np.empty(0, np.int64)
        if part is not None:
            self._ranged = np.flatnonzero(part["flags"] & FLAG_RANGE)
        if len(self._ranged):
            self._counts = np.maximum(self.part["tile"][self._ranged], 1)
            self.part["tile"][self._ranged] = -1
        self.carry(carried or nothing())

    def carry(self, rows: Rows) -> None:
        """Put these rows behind the part, in place of others."""
        self.carried = rows

    def at(self, places: I64) -> At:
        """The rows at places. With the rows that are carried now."""
        return At(self, places)

    def of_hook(self, hook: int) -> tuple[I64, I64, int]:
        """The part's rows of a hook as places and tasks, a range row once for each of its tasks.

        Also how many range rows were left out because what they say is impossible.
        """
        of_hook = self.part["hook"] == hook
        ranged = np.flatnonzero(of_hook[self._ranged])
        if not len(ranged):
            places = np.flatnonzero(of_hook)
            return places, self.part["task"][places], 0
        where, count = self._ranged[ranged], self._counts[ranged]
        sound = (count <= RANGE_MOST) & ((self.part["task"][where] & LOW) + count <= LOW + 1)
        sound &= np.cumsum(np.where(sound, count, 0)) <= EXPAND_MOST
        where, count = where[sound], count[sound]
        several = np.repeat(where, count)
        nth = np.arange(len(several)) - np.repeat(np.cumsum(count) - count, count)
        of_hook[self._ranged] = False
        places = np.concatenate([np.flatnonzero(of_hook), several])
        tasks = self.part["task"][places]
        tasks[len(tasks) - len(nth) :] += nth
        return places, tasks, len(ranged) - len(where)


class At:
    """Rows at places: `rows[name]` is a column of them. Where the place is -1 the value says nothing."""

    def __init__(self, events: Events, places: I64) -> None:
        self.places = places
        self._part, self._carried = events.part, events.carried
        self._empty = not events.count
        self._behind = np.flatnonzero(places >= events.count) if len(events.carried["t"]) else places[:0]
        self._their = places[self._behind] - events.count

    def __getitem__(self, name: str) -> Array:
        if self._empty:
            values = np.zeros(len(self.places), DTYPES[name])
        else:
            values = np.take(self._part[name], self.places, mode="clip")
        if len(self._behind):
            values[self._behind] = self._carried[name][self._their]
        return values

    def since(self) -> I64:
        """`since_ns`, NONE where it is null or saturated."""
        values: I64 = self["since_ns"]
        values[(values >= SINCE_MAX) | (values <= -SINCE_MAX)] = NONE
        return values

    def rows(self) -> Rows:
        """Copies of the rows."""
        return {n: self[n] for n in DTYPES}


def order_of(values: I64) -> I64:
    """Indices that put values in order, equal ones as they stand; NEVER comes last.

    Values of a part are near each other, so their places fit into the bits they do not use: twice as fast as a
    stable sort of indices.
    """
    known = values != NEVER
    if not known.any():
        return np.arange(len(values))
    low, high = int(values.min()), int(values[known].max())
    bits = len(values).bit_length()
    if high - low >= 1 << (62 - bits):
        return np.argsort(values, kind="stable")
    packed = np.where(known, values - low, high - low + 1) << bits | np.arange(len(values))
    packed.sort()
    return packed & ((1 << bits) - 1)


def _values(column: Any, name: str) -> Array:
    if name in _NULL:
        column = pc.fill_null(column, pa.scalar(_NULL[name], pa.int64()))
    values: Array = column.to_numpy()
    return values
