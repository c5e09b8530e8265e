"""What the simulation works on: one block of int64 words, and the names of their places.

The block begins with single words (`misc`), then come tables: a row per worker, task, dep … whose columns lie
together, so that handling a task touches two cache lines. Python sees the tables as numpy views; compiled code adds
a table's place, a row and a column. Everything is an integer, so that every machine computes the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import RECEIVES, SENDS, Graph
from ..schedule import Schedule

I64 = NDArray[np.int64]

# Single words.
MASK, STEP, T_NOW, NEXT_EPOCH, HEAP_SIZE, HEAP_ORDER, FULLEST, LOADED, STEP_T, STEPS_LEFT = range(10)
DYNAMIC, CAPACITY, THRESHOLD, WORKERS, RANKS, ROUNDS, END, WAKE, GAP, LINK = range(10, 20)
SEED, OVER_WORKER, OVER_SHARE, SKEW_EXPERT, SKEW_SHARE, EXPERTS, TOP_K, LAYERS, ROWS, SLOTS = range(20, 30)
TASKS, DEPS, STARTED, JITTER, LOSE, LINK_BYTES, STAGE_STRIDE = range(30, 37)
# Places of tables.
TASK_AT, DEP_AT, SLOT_AT, RELEASE_AT, WAITER_AT, LISTED_AT, KEY_AT, QUEUE_AT, OVERFLOW_AT, KEPT_AT = range(40, 50)
HEAP_AT, STAGE_AT, FILL_AT, ROUTED_AT, PICKED_AT, ROWS_AT, FACTOR_AT, LATE_AT = range(50, 58)
MISC_WORDS = 64

# Columns of `worker`, which begins right after the single words.
SEQ, STATE, CURRENT, START_T, WAIT_T, WAIT_TASK, WAIT_DEP, WAIT_SEEN, WAIT_STEP, NEXT = range(10)
POSITION, LIST, LISTED, QHEAD, QLEN, MONITOR, PLACE, RANK = range(10, 18)
LOST = 24
"""first of one column for each hook"""
WORKER_WORDS = 40

# Columns of `task`: constants of the graph, then what an iteration changes.
TILE_CLASS, T_SLOT, T_DEP, T_BLOCKING, T_RANK, T_COST, T_UNIT, T_SCALE, T_ROUTE, T_RELEASE = range(10)
T_RELEASED, T_ROUND, T_BYTES, T_KIND, T_READY, T_STARVE = range(10, 16)
TASK_WORDS = 16
PLAIN, SEND, RECEIVE = 0, 1, 2

# Columns of `dep`.
D_WANTED, D_KIND, D_WAITER, D_WAITED, D_COUNTER, D_SATISFIED, D_FIRST, D_RELEASER, D_POSTPONE = range(9)
DEP_WORDS = 12

# Columns of `slot`; the last row stands for work shared by the batch.
S_REQUEST, S_TOKENS, S_ATTENDED = range(3)
SLOT_WORDS = 4

# States of a worker.
RUNNING, IDLE, WOKEN, FOR_DEP, FOR_ARRIVAL, FOR_STEP, HELD, IN_CONTROL = range(8)

ONE = 1 << 16
"""1.0 of a factor or of the jitter"""
UNIT = 1 << 10
"""1 ns of a task's time per unit"""
SURE = 1 << 32
"""1.0 of a share"""
STAGE_ROWS = 1 << 14
"""The simulation returns when a monitor has this many rows to take."""
MOST_ROWS = 6
"""Request rows that one slot can fire as a step begins, with one to spare."""


@dataclass(frozen=True)
class Sim:
    """The block and its views. stage: [monitors, rows, 8] rows of the ABI not yet dequeued; fill: how many."""

    memory: I64
    misc: I64
    worker: I64
    task: I64
    dep: I64
    slot: I64
    stage: I64
    fill: I64
    routed: I64
    rows: I64
    factor: I64
    late: I64

    @property
    def address(self) -> int:
        """Where compiled code finds the block; it must not outlive this object."""
        return int(self.memory.ctypes.data)


def make(graph: Graph, schedule: Schedule | None, workers_per_rank: int, capacity: int, monitor: I64) -> Sim:
    """The tables of a run that has not begun. monitor: by worker. schedule None: dynamic, queues of `capacity`."""
    m = graph.model
    workers, tasks, deps = workers_per_rank * m.ranks, graph.tasks + 1, graph.deps + 1
    monitors = int(monitor.max()) + 1
    stride = STAGE_ROWS + most_rows(graph)
    # Every worker, dep and starved task has at most one event pending; an arrival one for each peer.
    pending = workers + deps + tasks + m.rounds * m.ranks * m.ranks + 16
    shapes: dict[int, tuple[int, ...]] = {
        0: (MISC_WORDS,),
        1: (workers, WORKER_WORDS),
        TASK_AT: (tasks, TASK_WORDS),
        DEP_AT: (deps, DEP_WORDS),
        SLOT_AT: (m.slots + 1, SLOT_WORDS),
        RELEASE_AT: (len(graph.release_dep),),
        WAITER_AT: (len(graph.waiter_task),),
        LISTED_AT: (graph.tasks if schedule else 0,),
        KEY_AT: (workers,),
        QUEUE_AT: (workers, capacity),
        OVERFLOW_AT: (m.ranks, 0 if schedule else tasks),
        KEPT_AT: (m.ranks, 2),
        HEAP_AT: (pending, 3),
        STAGE_AT: (monitors, stride, 8),
        FILL_AT: (monitors,),
        ROUTED_AT: (m.layers * m.experts,),
        PICKED_AT: (m.top_k,),
        ROWS_AT: (m.slots * MOST_ROWS, 3),
        FACTOR_AT: (len(graph.classes),),
        LATE_AT: (m.rounds,),
    }
    memory, views = _allocate(shapes)
    misc, worker = views[0], views[1]
    _fill(views, graph, schedule)
    ids = np.arange(workers)
    worker[:, MONITOR], worker[:, RANK] = monitor, ids // workers_per_rank
    worker[:, PLACE] = ids % workers_per_rank | (ids // workers_per_rank) << 56
    worker[:, WAIT_DEP] = worker[:, NEXT] = -1
    if schedule is not None:
        worker[:, LIST], worker[:, LISTED] = schedule.list_ptr[:-1], schedule.list_ptr[1:]
    misc[DYNAMIC], misc[CAPACITY], misc[THRESHOLD] = schedule is None, capacity, max(1, 3 * capacity // 4)
    misc[WORKERS], misc[RANKS], misc[ROUNDS], misc[END] = workers_per_rank, m.ranks, m.rounds, graph.end
    misc[EXPERTS], misc[TOP_K], misc[LAYERS], misc[SLOTS] = m.experts, m.top_k, m.layers, m.slots
    misc[TASKS], misc[DEPS], misc[STAGE_STRIDE] = tasks, deps, stride
    misc[OVER_WORKER] = misc[SKEW_EXPERT] = -1
    named = (TASK_AT, DEP_AT, SLOT_AT, STAGE_AT, FILL_AT, ROUTED_AT, ROWS_AT, FACTOR_AT, LATE_AT)
    return Sim(memory, misc, worker, *(views[at] for at in named))


def _allocate(shapes: Mapping[int, tuple[int, ...]]) -> tuple[I64, dict[int, I64]]:
    """One block for all tables, each beginning on a cache line; places of tables are noted in the single words."""
    starts, end = {}, 0
    for at, shape in shapes.items():
        starts[at] = end
        end += -(-int(np.prod(shape, dtype=np.int64)) // 8) * 8
    memory = np.zeros(end + 8, np.int64)
    memory = memory[(-memory.ctypes.data // 8) % 8 :]
    views = {
        at: memory[starts[at] : starts[at] + int(np.prod(shape, dtype=np.int64))].reshape(shape)
        for at, shape in shapes.items()
    }
    for at, place in starts.items():
        if at >= TASK_AT:
            memory[at] = place
    return memory, views


def _fill(views: Mapping[int, I64], graph: Graph, schedule: Schedule | None) -> None:
    m, task, dep = graph.model, views[TASK_AT], views[DEP_AT]
    task[:, TILE_CLASS] = graph.tile.astype(np.int64) | graph.task_class.astype(np.int64) << 32
    task[:, T_SLOT] = np.where(graph.slot < 0, m.slots, graph.slot)
    task[:, T_DEP], task[:, T_BLOCKING], task[:, T_RANK] = graph.dep, graph.blocking, graph.rank
    task[:, T_COST], task[:, T_UNIT], task[:, T_SCALE] = graph.cost_ns, np.rint(graph.unit_ns * UNIT), graph.scale
    task[:, T_ROUTE] = np.where(graph.expert >= 0, graph.layer * m.experts + graph.expert, 0)
    task[:, T_RELEASE], task[:, T_RELEASED] = graph.release_ptr[:-1], graph.release_ptr[1:]
    task[:, T_ROUND], task[:, T_BYTES] = graph.round, graph.bytes * max(m.ranks - 1, 1)
    task[:, T_KIND] = np.where(np.isin(graph.op, SENDS), SEND, np.where(np.isin(graph.op, RECEIVES), RECEIVE, PLAIN))
    dep[:, D_WANTED], dep[:, D_KIND] = graph.wanted, graph.dep_kind
    dep[:, D_WAITER], dep[:, D_WAITED] = graph.waiter_ptr[:-1], graph.waiter_ptr[1:]
    views[RELEASE_AT][:], views[WAITER_AT][:] = graph.release_dep, graph.waiter_task
    views[FACTOR_AT][:] = ONE
    if schedule is not None:
        views[LISTED_AT][:] = schedule.list_task


def most_rows(graph: Graph) -> int:
    """Upper bound of the rows that one event of the simulation can fire."""
    # For every waiter: ready, assign, pressure; and the worker goes on to its next task.
    per_dep = 1 + 3 * np.diff(graph.waiter_ptr)
    total = np.concatenate([[0], np.cumsum(per_dep[graph.release_dep])])
    releases = int((total[graph.release_ptr[1:]] - total[graph.release_ptr[:-1]]).max())
    return max(releases, int(per_dep[0])) + MOST_ROWS * graph.model.slots + 64
