"""The task graph of one decode step, as plain numpy arrays: what every engine executes.

A *task* is one tile of one operator on one rank. It waits on at most one *dep* before it may start (that one is
enough: whatever else it needs came before it), and the receive task of a communication round also blocks on a
second, the arrival of its peers' data, once it runs. A *dep* is one element of an event tensor: a counter that starts
from 0 in every iteration and is satisfied when `wanted` releases have been counted.

Row 0 of the task, class and dep arrays stands for "none", so that ids are indices and 0 never means anything else.
Tasks of one rank are contiguous and in an order in which each comes after what it waits on; tasks that wait on the
same dep are consecutive, so that one range row can say that all of them are ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .model import Model

Ints = NDArray[np.int64]


class Op(IntEnum):
    """Operator of a task: the code that a kernel dispatches on. Operands are in the task's coordinates."""

    NONE = 0
    EMBED = 1
    """slot: residual[slot] = embedding of its token"""
    NORM1 = 2
    """slot: residual[slot] += what came before it; x[slot] = norm(residual[slot])"""
    QKV = 3
    """n0, n1: qkv[:, n0:n1] = x @ w_qkv[:, n0:n1] (queries of all heads, then keys, then values)"""
    ATTN = 4
    """head, slot: rotate, append to the cache, attend over the slot's positions"""
    OPROJ = 5
    """n0, n1: partial[:, n0:n1] = heads @ w_o[:, n0:n1]"""
    NORM2 = 6
    """slot: as NORM1, with the MLP's weights"""
    GATE_UP = 7
    """n0, n1: act[:, n0:n1] = silu(x @ w_gate[:, n0:n1]) * (x @ w_up[:, n0:n1])"""
    DOWN = 8
    """n0, n1: partial[:, n0:n1] = act @ w_down[:, n0:n1]"""
    ROUTER = 9
    """slot: choose top_k experts"""
    EXPERT_UP = 10
    """expert, n0, n1: as GATE_UP for the slots routed to it"""
    EXPERT_DOWN = 11
    """expert, n0, n1: as DOWN for the slots routed to it"""
    COMBINE = 12
    """slot: weighted sum of its experts' outputs"""
    FINAL_NORM = 13
    """slot"""
    LM_HEAD = 14
    """n0, n1: logits[:, n0:n1] = x @ w_head[:, n0:n1]"""
    SAMPLE = 15
    """slot: choose the next token"""
    ATTN_SEND = 16
    """round: put this rank's partial sum of the attention block into every peer's buffer"""
    ATTN_RECV = 17
    """round: wait for the peers' partial sums, add them up"""
    MLP_SEND = 18
    MLP_RECV = 19
    LOGITS_SEND = 20
    LOGITS_RECV = 21


SENDS = (Op.ATTN_SEND, Op.MLP_SEND, Op.LOGITS_SEND)
RECEIVES = (Op.ATTN_RECV, Op.MLP_RECV, Op.LOGITS_RECV)


class Scale(IntEnum):
    """What a task's duration grows with: `cost_ns + unit_ns * units`."""

    FIXED = 0
    BATCH = 1
    """tokens of the whole batch in this step"""
    SLOT = 2
    """tokens of its slot in this step; none: the task is short"""
    POSITION = 3
    """positions that its slot attends to, times 16-row query tiles; none: the task is short"""
    EXPERT = 4
    """tokens routed to its expert in this step and layer; none: the task is short"""


SHORT_NS = 120
"""Duration of a task that finds nothing to do: an empty slot's, or that of an expert with no token."""

DATA, COMMUNICATION, RESOURCE, CONTROL = 1, 2, 3, 4
"""Kinds of dependency: `store.tables.DEP_CLASSES`."""


@dataclass(frozen=True)
class TaskClass:
    """One (operator, layer). `tensor_region` says for people what its tasks write."""

    name: str
    op: Op
    layer: int
    tensor_region: str


@dataclass(frozen=True)
class EventTensor:
    """`shape` counters of one kind on one rank: deps `first` … `first + prod(shape) - 1`, in row-major order."""

    name: str
    rank: int
    shape: tuple[int, ...]
    kind: int
    first: int


@dataclass(frozen=True)
class Graph:
    """All tasks and dependencies of one iteration.

    Task arrays have `tasks + 1` rows and dep arrays `deps + 1`; row 0 stands for none. Coordinates that an operator
    does not have are -1. The CSR arrays are read as `dep[ptr[i]:ptr[i + 1]]`.
    """

    model: Model
    classes: tuple[TaskClass, ...]
    """by task_class; entry 0 is none"""
    tensors: tuple[EventTensor, ...]

    op: NDArray[np.uint8]
    task_class: NDArray[np.uint16]
    tile: NDArray[np.uint32]
    """coordinates packed as `TILE_FIELDS` says"""
    rank: NDArray[np.uint8]
    dep: NDArray[np.int32]
    """waited on before it starts; 0: it may start when the iteration begins"""
    blocking: NDArray[np.int32]
    """arrival that a receive blocks on, 0 for all others"""
    slot: NDArray[np.int32]
    """-1: the work is shared by the batch"""
    layer: NDArray[np.int32]
    head: NDArray[np.int32]
    """over all ranks"""
    expert: NDArray[np.int32]
    """over all ranks"""
    n0: NDArray[np.int32]
    """first output column, in the rank's own shard"""
    n1: NDArray[np.int32]
    """one past the last"""
    round: NDArray[np.int32]
    """communication round of the iteration"""
    bytes: NDArray[np.int64]
    """sent to each peer"""
    cost_ns: NDArray[np.int64]
    """nominal fixed part of the duration on the host engine"""
    unit_ns: NDArray[np.float64]
    """nominal part per unit of `scale`"""
    scale: NDArray[np.uint8]
    phase: NDArray[np.int32]
    """(phase, rank, index) orders the tasks of all ranks topologically"""

    release_ptr: Ints
    """task -> deps it releases when it completes (for a send: also its peers' arrivals, by way of the link)"""
    release_dep: NDArray[np.int32]
    waiter_ptr: Ints
    """dep -> tasks that wait on it, ascending; of an arrival: the receive that blocks on it; of 0: the first tasks"""
    waiter_task: NDArray[np.int32]

    wanted: NDArray[np.int32]
    dep_kind: NDArray[np.uint8]
    dep_tensor: NDArray[np.int32]
    """index into `tensors`, -1 for none"""
    dep_rank: NDArray[np.uint8]
    """rank that holds the counter"""
    producer_class: NDArray[np.int32]
    """-1: several"""

    rank_ptr: Ints
    """tasks of rank r are rank_ptr[r] … rank_ptr[r + 1] - 1"""
    end: int
    """dep that is satisfied when the iteration has ended on every rank (held by rank 0)"""

    @property
    def tasks(self) -> int:
        """Tasks of one iteration over all ranks; their ids are 1 … tasks."""
        return len(self.op) - 1

    @property
    def deps(self) -> int:
        """Dependencies over all ranks; their ids are 1 … deps."""
        return len(self.wanted) - 1

    def releases(self, task: int) -> NDArray[np.int32]:
        """Deps that a task releases."""
        return self.release_dep[self.release_ptr[task] : self.release_ptr[task + 1]]

    def waiters(self, dep: int) -> NDArray[np.int32]:
        """Tasks that wait on a dep."""
        return self.waiter_task[self.waiter_ptr[dep] : self.waiter_ptr[dep + 1]]

    def class_id(self, name: str) -> int | None:
        """Id of the task class with that name."""
        return next((i for i, c in enumerate(self.classes) if i and c.name == name), None)

    def dep_name(self, dep: int) -> str:
        """Event tensor and coordinate, as in `l03.qkv[5]`; with several ranks the counter's rank after an @."""
        tensor = self.tensors[int(self.dep_tensor[dep])]
        at = ",".join(map(str, self.coordinate(dep)))
        where = f"@{tensor.rank}" if self.model.ranks > 1 else ""
        return f"{tensor.name}[{at}]{where}" if at else f"{tensor.name}{where}"

    def coordinate(self, dep: int) -> tuple[int, ...]:
        """Coordinate of a dep in its event tensor."""
        tensor = self.tensors[int(self.dep_tensor[dep])]
        return tuple(int(i) for i in np.unravel_index(dep - tensor.first, tensor.shape)) if tensor.shape else ()


SLOT_FIELDS = (("slot", 0, 16),)
COLUMN_FIELDS = (("tile", 0, 16),)
TILE_FIELDS: dict[Op, tuple[tuple[str, int, int], ...]] = {
    **dict.fromkeys((Op.EMBED, Op.NORM1, Op.NORM2, Op.ROUTER, Op.COMBINE, Op.FINAL_NORM, Op.SAMPLE), SLOT_FIELDS),
    **dict.fromkeys((Op.QKV, Op.OPROJ, Op.GATE_UP, Op.DOWN, Op.LM_HEAD), COLUMN_FIELDS),
    **dict.fromkeys((Op.EXPERT_UP, Op.EXPERT_DOWN), (*COLUMN_FIELDS, ("expert", 16, 16))),
    Op.ATTN: (*SLOT_FIELDS, ("head", 16, 16)),
    **dict.fromkeys((*SENDS, *RECEIVES), (("round", 0, 16),)),
}
"""(name, shift, bits) of the coordinates in `tile`, by operator."""
