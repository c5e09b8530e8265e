"""From the places of a task's rows to its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .pairing_match import I32, at_or
from .pairing_rows import ASSIGN, COMPLETE, LOW, NEVER, NONE, READY, START, Array, Rows
from .tables import REQUEST_SET_BIT, REQUEST_UNKNOWN, TASKS, Table

SHARED, PRELAUNCHED, MOVED, GIVEN_UP = 1, 2, 4, 8

Bools = npt.NDArray[np.bool_]


def nullable(values: Array, valid: Bools, kind: pa.DataType) -> pa.Array[Any]:
    """An Arrow array of integers; what stands under a null is zero."""
    if valid.all():
        return pa.array(values, kind)
    width = {pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64}[kind]
    values = np.where(valid, values, 0).astype(width, copy=False)
    bitmap = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(bitmap), pa.py_buffer(values)])


def as_table(table: Table, columns: dict[str, Array | tuple[Array, Bools]]) -> pa.Table:
    """Columns, or columns and where they are valid, as a declared table."""
    arrays = []
    for c in table:
        given = columns[c.name]
        arrays.append(nullable(*given, c.arrow) if isinstance(given, tuple) else pa.array(given, c.arrow))
    return pa.table(arrays, schema=table.schema)


def task_table(rows: Rows, at: I32, hooks: frozenset[int], *, given_up: bool, ordered: bool) -> pa.Table:
    """The tasks whose rows stand at `at` [4, tasks] (-1: none), as `TASKS`.

    In order of start (nulls last), iteration, rank, index; of one identity as given. `ordered`: they come in order of
    identity.
    """
    t, extra = rows["t"], rows["extra"]
    carried = at_or(extra, at[COMPLETE - 1], NONE)
    start = np.where(at[START - 1] >= 0, at_or(t, at[START - 1], 0), at_or(t, at[COMPLETE - 1], 0) - carried)
    started = (at[START - 1] >= 0) | (carried != NONE)
    by_start = np.where(started, start, NEVER)
    if ordered:
        order = np.argsort(by_start, kind="stable")
    else:
        any_row = at.max(axis=0, initial=-1)
        task = at_or(rows["task"], any_row, 0)
        order = np.lexsort((task & LOW, at_or(rows["rank"], any_row, 0), task >> 32, by_start))
    at, start, started = at[:, order], start[order], started[order]

    readied, assigned, began, done = at
    latest = np.where(done >= 0, done, np.where(began >= 0, began, np.where(assigned >= 0, assigned, readied)))
    complete = at_or(t, done, 0)
    carried = at_or(extra, began, NONE)
    ready = np.where(readied >= 0, at_or(t, readied, 0), at_or(t, began, 0) - carried)
    known_ready = (readied >= 0) | (carried != NONE)
    assign, target = at_or(t, assigned, 0), at_or(extra, assigned, 0) >> 48 & 0xFFFF
    ran = np.where(done >= 0, done, began)
    worker = at_or(rows["worker"], ran, -1)
    request = rows["request"][latest]
    tile = at_or(rows["tile"], latest, -1)
    for place in (began, assigned, readied):
        if (tile >= 0).all():
            break
        tile = np.where(tile >= 0, tile, at_or(rows["tile"], place, -1))

    missing = np.zeros(len(latest), np.int16)
    for hook, place in zip(range(READY, COMPLETE + 1), at, strict=True):
        if hook in hooks:
            missing |= (place < 0).astype(np.int16) << (hook - 1)
    shared = (request & REQUEST_SET_BIT != 0) & (request != REQUEST_UNKNOWN)
    flags = np.where(shared, SHARED, 0)
    flags |= np.where((assigned >= 0) & known_ready & (assign < ready), PRELAUNCHED, 0)
    flags |= np.where((assigned >= 0) & (ran >= 0) & (target != worker), MOVED, 0)
    flags |= GIVEN_UP if given_up else 0
    return as_table(
        TASKS,
        {
            "rank": rows["rank"][latest],
            "task": rows["task"][latest],
            "task_class": rows["task_class"][latest],
            "ready": (ready, known_ready),
            "assign": (assign, assigned >= 0),
            "start": (start, started),
            "complete": (complete, done >= 0),
            "exec_ns": (complete - start, started & (done >= 0)),
            "queue_ns": (start - ready, started & known_ready),
            "worker": (worker, ran >= 0),
            "ready_worker": (at_or(rows["worker"], readied, 0), readied >= 0),
            "assigned_worker": (target.astype(np.int32), assigned >= 0),
            "request": request,
            "step": rows["step"][latest],
            "tile": (tile, tile >= 0),
            "released_by": (at_or(extra, readied, 0), readied >= 0),
            "dep": (at_or(rows["dep"], readied, 0), readied >= 0),
            "dep_class": (at_or(rows["dep_class"], readied, 0), readied >= 0),
            "missing": missing,
            "flags": flags.astype(np.int16),
        },
    )
