"""Ring rows become stored events: signed, `aux` split by hook, ordered by (rank, worker, seq).

The ring keeps the ABI's unsigned columns, because a drain must be cheap. The conversion happens once, when a part is
sealed or a tail is read, column by column and a row group at a time, so that what is worked on stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .tables import EVENTS, HOOKS, RING_ROW, SINCE_MAX

ROW_GROUP = 131_072

Column = npt.NDArray[Any]
Columns = dict[str, Column]
Indices = npt.NDArray[np.int64]

_CARRIES_TIME = np.zeros(256, np.bool_)
_CARRIES_TIME[[h.id for h in HOOKS if h.since]] = True
_NUMPY: dict[str, Any] = {"i16": np.dtype("<i2"), "i32": np.dtype("<i4"), "i64": np.dtype("<i8")}
_STORED = {c.name: _NUMPY[c.type] for c in EVENTS}


def ring_columns(batches: Iterable[pa.RecordBatch], rows: int, scratch: Columns | None = None) -> Columns:
    """The ring columns of `batches`, which have at most `rows` rows, end to end as numpy arrays of the ABI's types.

    Batches are taken one by one, so that each is copied while it is still in the cache. `scratch` keeps the memory
    from one call to the next, because fresh pages cost a tenth of the time; the last result is then overwritten.
    """
    columns = {} if scratch is None else scratch
    if "t" not in columns or len(columns["t"]) < rows:
        columns |= {c.name: np.empty(rows, RING_ROW.dtype[c.name]) for c in RING_ROW}
    at = 0
    for batch in batches:
        end = at + batch.num_rows
        for name, values in zip(columns, batch.columns, strict=True):
            columns[name][at:end] = values.to_numpy(zero_copy_only=True)
        at = end
    return {name: column[:at] for name, column in columns.items()}


def arrival_to_order(columns: Columns) -> Indices | None:
    """Indices that put rows in order of (rank, worker, seq); None when they already are.

    A monitor drains each worker in order, so stable radix sorts by small keys are nearly always enough.
    """
    rank, worker, seq = columns["rank"], columns["worker"], columns["seq"]
    if _is_ordered(rank, worker, seq):
        return None
    order: Indices = np.argsort(worker, kind="stable")
    if not _is_constant(rank):
        order = order[np.argsort(rank[order], kind="stable")]
    if not _is_ordered(rank[order], worker[order], seq[order]):
        order = np.lexsort((seq, worker, rank))
    return order


def _is_ordered(rank: Column, worker: Column, seq: Column) -> bool:
    if not _is_constant(rank):
        later = (rank[1:] > rank[:-1]) | (rank[1:] == rank[:-1]) & (worker[1:] > worker[:-1])
        same = (rank[1:] == rank[:-1]) & (worker[1:] == worker[:-1])
    else:
        later, same = worker[1:] > worker[:-1], worker[1:] == worker[:-1]
    return bool((later | same & (seq[1:] >= seq[:-1])).all())


def _is_constant(column: Column) -> bool:
    return len(column) == 0 or bool((column[::4096] == column[0]).all() and (column == column[0]).all())


def stored_events(columns: Columns, order: Indices | None) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches of `EVENTS` of at most a row group each, and how many of their rows have a saturated `since_ns`."""
    rows = len(columns["t"])
    constant = {name for name, column in columns.items() if order is None or _is_constant(column)}
    for begin in range(0, rows, ROW_GROUP):
        end = begin + ROW_GROUP
        picked = np.empty(0, np.int64) if order is None else order[begin:end]
        # The order is a permutation, so nothing is clipped; numpy only takes a quarter less time this way.
        taken = {n: c[begin:end] if n in constant else c.take(picked, mode="clip") for n, c in columns.items()}
        yield _convert(taken)


def _convert(ring: Columns) -> tuple[pa.RecordBatch, int]:
    t = ring["t"].view(np.int64)
    aux = ring["aux"].view(np.int64)
    timed = _CARRIES_TIME.take(ring["hook"])
    known = timed & (aux != 0)
    # What stands under a null is zero, so that it says nothing and packs well. Times are below 2^63 in any real
    # run; where they are not, the difference wraps and saturates like any other.
    since = t - aux
    since *= known
    beyond = 0
    if len(since) and (since.max() > SINCE_MAX or since.min() < -SINCE_MAX):
        beyond = int(np.count_nonzero((since > SINCE_MAX) | (since < -SINCE_MAX)))
        np.clip(since, -SINCE_MAX, SINCE_MAX, out=since)
    untimed = ~timed
    arrays: list[pa.Array[Any]] = []
    for column in EVENTS:
        if column.name == "since_ns":
            arrays.append(_nullable(since, known))
        elif column.name == "aux":
            arrays.append(_nullable(aux * untimed, untimed))
        else:
            arrays.append(pa.array(ring[column.name].astype(_STORED[column.name], copy=False)))
    return pa.record_batch(arrays, schema=EVENTS.schema), beyond


def _nullable(values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """An int64 array over `values`, without a copy."""
    bitmap = np.packbits(valid, bitorder="little")
    buffers: list[pa.Buffer | None] = [pa.py_buffer(bitmap.data), pa.py_buffer(values.data)]
    return pa.Array.from_buffers(pa.int64(), len(values), buffers)
