"""From the places of a task's rows to its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .pairing_rows import COMPLETE, I64, LOW, NEVER, NONE, START, TASK_HOOKS, Array, Bools, Events, order_of
from .tables import REQUEST_SET_BIT, REQUEST_UNKNOWN, TASKS, Table

SHARED, PRELAUNCHED, MOVED, GIVEN_UP = 1, 2, 4, 8


def nullable(values: Array, valid: Bools, kind: pa.DataType) -> pa.Array[Any]:
    """An Arrow array over integers of that type, which it takes over. What stands under a null is zero."""
    if valid.all():
        return pa.array(values, kind)
    values[~valid] = 0
    bitmap = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(bitmap.data), pa.py_buffer(values.data)])


def as_table(table: Table, columns: dict[str, Array | tuple[Array, Bools]]) -> pa.Table:
    """Columns, or columns and where they are valid, as a declared table."""
    arrays = []
    for c in table:
        given = columns[c.name]
        arrays.append(nullable(*given, c.arrow) if isinstance(given, tuple) else pa.array(given, c.arrow))
    return pa.table(arrays, schema=table.schema)


def task_table(
    events: Events, at: I64, rank: Array, task: I64, hooks: frozenset[int], *, given_up: bool, ordered: bool
) -> pa.Table:
    """The tasks whose rows stand at `at` [4, tasks] (-1: none), as `TASKS`.

    In order of start (nulls last), iteration, rank, index; of one identity as given. `ordered`: they come in order of
    identity. hooks: those whose events are expected.
    """
    done, began = events.at(at[COMPLETE - 1]), events.at(at[START - 1])
    has_start, has_complete = began.places >= 0, done.places >= 0
    since = done.since()
    start = np.where(has_start, began["t"], done["t"] - since)
    started = has_start | (has_complete & (since != NONE))
    by_start = np.where(started, start, NEVER)
    order = order_of(by_start) if ordered else np.lexsort((task & LOW, rank, task >> 32, by_start))
    at, start, started, rank, task = at[:, order], start[order], started[order], rank[order], task[order]

    readied, assigned, began, done = (events.at(places) for places in at)
    has_ready, has_assign, has_start, has_complete = at >= 0
    of_start_or_earlier = np.where(has_start, at[2], np.where(has_assign, at[1], at[0]))
    latest = events.at(np.where(has_complete, at[3], of_start_or_earlier))
    ran = events.at(np.where(has_complete, at[3], at[2]))
    since = began.since()
    complete, assign = done["t"], assigned["t"]
    ready = np.where(has_ready, readied["t"], began["t"] - since)
    known_ready = has_ready | (has_start & (since != NONE))
    target = (assigned["aux"] >> 48 & 0xFFFF).astype(np.int32)
    worker, request, tile = ran["worker"], latest["request"], latest["tile"]
    for rows in (began, assigned, readied):
        if (tile >= 0).all():
            break
        tile = np.where((tile < 0) & (rows.places >= 0), rows["tile"], tile)

    missing = np.zeros(len(request), np.int16)
    for hook, place in zip(TASK_HOOKS, at, strict=True):
        if hook in hooks:
            missing |= (place < 0).astype(np.int16) << (hook - 1)
    ran_somewhere = ran.places >= 0
    shared = (request & REQUEST_SET_BIT != 0) & (request != REQUEST_UNKNOWN)
    flags = shared.astype(np.int16) * SHARED
    flags |= (has_assign & known_ready & (assign < ready)).astype(np.int16) * PRELAUNCHED
    flags |= (has_assign & ran_somewhere & (target != worker)).astype(np.int16) * MOVED
    flags |= GIVEN_UP if given_up else 0
    return as_table(
        TASKS,
        {
            "rank": rank,
            "task": task,
            "task_class": latest["task_class"],
            "ready": (ready, known_ready),
            "assign": (assign, has_assign),
            "start": (start, started),
            "complete": (complete, has_complete),
            "exec_ns": (complete - start, started & has_complete),
            "queue_ns": (start - ready, started & known_ready),
            "worker": (worker, ran_somewhere),
            "ready_worker": (readied["worker"], has_ready),
            "assigned_worker": (target, has_assign),
            "request": request,
            "step": latest["step"],
            "tile": (tile, tile >= 0),
            "released_by": (readied["aux"], has_ready),
            "dep": (readied["dep"], has_ready),
            "dep_class": (readied["dep_class"], has_ready),
            "missing": missing,
            "flags": flags,
        },
    )
