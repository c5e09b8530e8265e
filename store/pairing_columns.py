"""From the places of a task's rows to its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .pairing_rows import COMPLETE, I64, LOW, NEVER, NONE, START, TASK_HOOKS, Array, Bools, Events
from .tables import REQUEST_SET_BIT, REQUEST_UNKNOWN, TASKS, Table

SHARED, PRELAUNCHED, MOVED, GIVEN_UP = 1, 2, 4, 8


def nullable(values: Array, valid: Bools, kind: pa.DataType) -> pa.Array[Any]:
    """An Arrow array over integers of that type, which it takes over. What stands under a null is zero."""
    if valid.all():
        return pa.array(values, kind)
    values[~valid] = 0
    bitmap = np.packbits(valid, bitorder="little")
    return pa.Array.from_buffers(
        kind, len(values), [pa.py_buffer(memoryview(bitmap)), pa.py_buffer(memoryview(values))]
    )


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
    since = events.since(at[COMPLETE - 1])
    of_row, from_complete = at[START - 1] >= 0, (at[COMPLETE - 1] >= 0) & (since != NONE)
    start = np.where(of_row, events.take("t", at[START - 1]), events.take("t", at[COMPLETE - 1]) - since)
    started = of_row | from_complete
    by_start = np.where(started, start, NEVER)
    order = np.argsort(by_start, kind="stable") if ordered else np.lexsort((task & LOW, rank, task >> 32, by_start))
    at, start, started, rank, task = at[:, order], start[order], started[order], rank[order], task[order]

    readied, assigned, began, done = at
    has_ready, has_assign, has_start, has_complete = at >= 0
    latest = np.where(has_complete, done, np.where(has_start, began, np.where(has_assign, assigned, readied)))
    ran = np.where(has_complete, done, began)
    complete = events.take("t", done)
    since = events.since(began)
    ready = np.where(has_ready, events.take("t", readied), events.take("t", began) - since)
    known_ready = has_ready | (has_start & (since != NONE))
    assign, target = events.take("t", assigned), (events.take("aux", assigned) >> 48 & 0xFFFF).astype(np.int32)
    worker = events.take("worker", ran)
    request = events.take("request", latest)
    tile = events.take("tile", latest)
    for place in (began, assigned, readied):
        if (tile >= 0).all():
            break
        tile = np.where((tile < 0) & (place >= 0), events.take("tile", place), tile)

    missing = np.zeros(len(latest), np.int16)
    for hook, place in zip(TASK_HOOKS, at, strict=True):
        if hook in hooks:
            missing |= (place < 0).astype(np.int16) << (hook - 1)
    ran_somewhere = ran >= 0
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
            "task_class": events.take("task_class", latest),
            "ready": (ready, known_ready),
            "assign": (assign, has_assign),
            "start": (start, started),
            "complete": (complete, has_complete),
            "exec_ns": (complete - start, started & has_complete),
            "queue_ns": (start - ready, started & known_ready),
            "worker": (worker, ran_somewhere),
            "ready_worker": (events.take("worker", readied), has_ready),
            "assigned_worker": (target, has_assign),
            "request": request,
            "step": events.take("step", latest),
            "tile": (tile, tile >= 0),
            "released_by": (events.take("aux", readied), has_ready),
            "dep": (events.take("dep", readied), has_ready),
            "dep_class": (events.take("dep_class", readied), has_ready),
            "missing": missing,
            "flags": flags,
        },
    )
