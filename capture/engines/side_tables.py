"""Renders a graph and its deployment as the compiler's side tables (`store.tables.COMPILER_TABLES`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ...store.tables import DEPENDENCIES, STATIC_TASKS, TASK_CLASSES, TASK_DEPS, TILE_FIELDS, WORKERS, Table
from . import graph as tasks
from .graph import Graph, Op
from .schedule import Schedule


def _table(table: Table, **columns: Any) -> pa.Table:
    return pa.table([pa.array(columns[c.name], type=c.arrow) for c in table], schema=table.schema)


def _expected(graph: Graph) -> list[list[int]]:
    """Kinds of the deps that tasks of each class wait for, by class id."""
    kinds: list[set[int]] = [set() for _ in graph.classes]
    for waits in (graph.dep, graph.blocking):
        kind = graph.dep_kind[waits].astype(np.int64)
        for pair in np.unique(graph.task_class.astype(np.int64)[waits > 0] << 8 | kind[waits > 0]):
            kinds[pair >> 8].add(int(pair & 0xFF))
    return [sorted(k) for k in kinds]


def compiler_tables(
    graph: Graph,
    workers_per_rank: int,
    schedule: Schedule | None,
    monitor: ArrayLike,
    sm: ArrayLike | None = None,
    device_functions: Mapping[Op, str] | None = None,
) -> dict[str, pa.Table]:
    """All compiler tables by name. `schedule` is None when it is dynamic (worker and order are then -1).

    monitor, sm: by worker id (sm: the worker's number within its rank, if None). device_functions: symbol by operator.
    """
    symbols = device_functions or {}
    classes = list(enumerate(graph.classes))[1:]
    expected = _expected(graph)
    workers = np.arange(workers_per_rank * graph.model.ranks)
    deps = range(1, graph.deps + 1)
    index = np.arange(1, graph.tasks + 1)
    none: NDArray[np.int32] = np.full(graph.tasks + 1, -1, dtype=np.int32)
    releasing = np.repeat(np.arange(graph.tasks + 1), np.diff(graph.release_ptr))
    waited = np.concatenate([graph.dep, graph.blocking])
    waiting = np.tile(np.arange(graph.tasks + 1), 2)
    waiting, waited = waiting[waited > 0], waited[waited > 0]
    fields = [(i, *f) for i, c in classes for f in tasks.TILE_FIELDS[c.op]]
    return {
        TASK_CLASSES.name: _table(
            TASK_CLASSES,
            id=[i for i, _ in classes],
            name=[c.name for _, c in classes],
            operator=[c.op.name.lower() for _, c in classes],
            layer=[c.layer for _, c in classes],
            device_function=[symbols.get(c.op, "") for _, c in classes],
            tensor_region=[c.tensor_region for _, c in classes],
            expected_dep_classes=[expected[i] for i, _ in classes],
        ),
        DEPENDENCIES.name: _table(
            DEPENDENCIES,
            id=list(deps),
            name=[graph.dep_name(d) for d in deps],
            event_tensor=[graph.tensors[i].name for i in graph.dep_tensor[1:]],
            coordinate=[list(graph.coordinate(d)) for d in deps],
            kind=graph.dep_kind[1:],
            wanted=graph.wanted[1:],
            producer_class=graph.producer_class[1:],
            rank=graph.dep_rank[1:],
        ),
        WORKERS.name: _table(
            WORKERS,
            worker=workers,
            monitor=np.asarray(monitor),
            sm=workers % workers_per_rank if sm is None else np.asarray(sm),
            role=["compute"] * len(workers),
            rank=workers // workers_per_rank,
        ),
        TILE_FIELDS.name: _table(
            TILE_FIELDS,
            task_class=[f[0] for f in fields],
            name=[f[1] for f in fields],
            shift=[f[2] for f in fields],
            bits=[f[3] for f in fields],
        ),
        STATIC_TASKS.name: _table(
            STATIC_TASKS,
            index=index,
            task_class=graph.task_class[1:],
            tile=graph.tile[1:],
            rank=graph.rank[1:],
            worker=(schedule.worker if schedule else none)[1:],
            order=(schedule.order if schedule else none)[1:],
            dep=graph.dep[1:],
        ),
        TASK_DEPS.name: _table(
            TASK_DEPS,
            index=np.concatenate([releasing, waiting]),
            dep=np.concatenate([graph.release_dep, waited]),
            releases=np.repeat([True, False], [len(releasing), len(waiting)]),
        ),
    }
