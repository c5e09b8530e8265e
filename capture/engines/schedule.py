"""The static schedule: which worker runs which task, in which order, decided before the kernel starts."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Ints, Scale


@dataclass(frozen=True)
class Schedule:
    """Worker lists over all ranks; worker ids are rank * workers_per_rank + i.

    `worker` and `order` have `tasks + 1` rows (row 0: none, -1). Worker w runs list_task[list_ptr[w]:list_ptr[w + 1]]
    in every iteration, each as soon as its dep is satisfied and the one before is complete.
    """

    workers_per_rank: int
    worker: NDArray[np.int32]
    order: NDArray[np.int32]
    list_ptr: Ints
    list_task: NDArray[np.int32]


def nominal_ns(graph: Graph) -> NDArray[np.float64]:
    """Duration of each task with every slot decoding at half the context and experts evenly used."""
    m = graph.model
    units = np.zeros(len(Scale))
    units[Scale.BATCH], units[Scale.SLOT], units[Scale.POSITION] = m.slots, 1, m.context / 2
    units[Scale.EXPERT] = m.slots * m.top_k / max(m.experts, 1)
    duration: NDArray[np.float64] = graph.cost_ns + graph.unit_ns * units[graph.scale]
    return duration


def static_schedule(graph: Graph, workers_per_rank: int) -> Schedule:
    """List scheduling: tasks in topological order, each to the worker of its rank that is free first.

    It cannot deadlock: all lists are in one topological order over all ranks, so the first unfinished task of that
    order stands at the head of its list and all it waits on is complete.
    """
    order = np.lexsort((np.arange(1, graph.tasks + 1), graph.rank[1:], graph.phase[1:])) + 1
    free = [[(0.0, r * workers_per_rank + i) for i in range(workers_per_rank)] for r in range(graph.model.ranks)]
    for heap in free:
        heapify(heap)
    satisfied = np.zeros(graph.deps + 1)
    ranks, duration = graph.rank.tolist(), nominal_ns(graph).tolist()
    needs = np.stack([graph.dep, graph.blocking], axis=1).tolist()
    worker = np.full(graph.tasks + 1, -1, dtype=np.int32)
    for task in order.tolist():
        heap = free[ranks[task]]
        at, chosen = heap[0]
        done = max(at, *(satisfied[d] for d in needs[task])) + duration[task]
        heapreplace(heap, (done, chosen))
        worker[task] = chosen
        for dep in graph.releases(task):
            satisfied[dep] = max(satisfied[dep], done)
    by_worker = order[np.argsort(worker[order], kind="stable")]
    ptr = np.searchsorted(worker[by_worker], np.arange(workers_per_rank * graph.model.ranks + 1))
    position = np.full(graph.tasks + 1, -1, dtype=np.int32)
    position[by_worker] = np.arange(graph.tasks) - ptr[worker[by_worker]]
    return Schedule(workers_per_rank, worker, position, ptr, by_worker.astype(np.int32))
