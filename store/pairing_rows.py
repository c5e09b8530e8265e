"""The rows that pairing works on: the columns it needs of the events, as numpy arrays of one length.

`extra` is what a hook carries beyond the columns all share: `since_ns` for start, complete and resume, `aux` for
ready, assign and wait. A row that stands for several consecutive tasks becomes one row for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .tables import FLAG_RANGE, HOOK_BY_NAME, SINCE_MAX

READY, ASSIGN, START, COMPLETE, WAIT, RESUME = (
    HOOK_BY_NAME[n].id for n in ("ready", "assign", "start", "complete", "wait", "resume")
)
LOW = 0xFFFF_FFFF
NONE: int = np.iinfo(np.int64).min
"""In `extra`: the row carries no time, or one too long ago to be exact."""
NEVER: int = np.iinfo(np.int64).max

RANGE_MOST = 1 << 20
"""A range row that stands for more tasks than this is not taken at its word."""
EXPAND_MOST = 1 << 22
"""All range rows of one part together stand for no more tasks than this; the rest is left out and counted."""

I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Rows = dict[str, Array]

DTYPES: dict[str, Any] = {
    "t": np.int64, "seq": np.int64, "task": np.int64, "extra": np.int64, "request": np.int64, "step": np.int64,
    "dep": np.int64, "tile": np.int64, "task_class": np.int32, "worker": np.int32, "rank": np.int16, "hook": np.int16,
    "dep_class": np.int16,
}  # fmt: skip
SCHEMA = pa.schema([pa.field(n, pa.from_numpy_dtype(np.dtype(d)), nullable=False) for n, d in DTYPES.items()])
_COPIED = [n for n in DTYPES if n != "extra"]


class Events:
    """One part's events as numpy columns. Raises KeyError for a column that is missing."""

    def __init__(self, events: pa.Table) -> None:
        self._columns = {n: events[n].to_numpy() for n in (*_COPIED, "flags")}
        self._since = pc.fill_null(events["since_ns"], NONE).to_numpy()
        self._aux = pc.fill_null(events["aux"], 0).to_numpy()
        self.count = events.num_rows

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def of_hooks(self, low: int, high: int) -> tuple[Rows, Array]:
        """The rows whose hook is in [low, high], in order, and their flags. From `START` on they carry a time."""
        hook = self["hook"]
        picked = np.flatnonzero((hook >= low) & (hook <= high))
        rows: Rows = {n: self[n][picked].astype(DTYPES[n], copy=False) for n in _COPIED}
        since = self._since[picked]
        since[np.abs(since) >= SINCE_MAX] = NONE
        carries = (rows["hook"] == START) | (rows["hook"] == COMPLETE) | (rows["hook"] == RESUME)
        rows["extra"] = np.where(carries, since, self._aux[picked])
        return rows, self["flags"][picked]


def nothing() -> Rows:
    return {n: np.empty(0, d) for n, d in DTYPES.items()}


def take(rows: Rows, which: Array) -> Rows:
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


def expanded(rows: Rows, flags: Array) -> tuple[Rows, int]:
    """Rows with one for each task that a range row stands for, and how many range rows were left out as impossible.

    A range row's `tile` is a count, so the coordinates of its tasks are not known: -1.
    """
    ranged = np.flatnonzero(flags & FLAG_RANGE)
    if not len(ranged):
        return rows, 0
    count = np.maximum(rows["tile"][ranged], 1)
    sound = (count <= RANGE_MOST) & ((rows["task"][ranged] & LOW) + count <= LOW + 1)
    sound &= np.cumsum(np.where(sound, count, 0)) <= EXPAND_MOST
    each = count[sound]
    several = take(rows, np.repeat(ranged[sound], each))
    several["task"] += np.arange(len(several["t"])) - np.repeat(np.cumsum(each) - each, each)
    several["tile"] = np.full(len(several["t"]), -1, np.int64)
    return join([take(rows, np.flatnonzero((flags & FLAG_RANGE) == 0)), several]), int(np.count_nonzero(~sound))
