"""Builds the task graph: which tiles a decode step has, what each waits on and what each releases."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...store.errors import Usage
from .graph import COMMUNICATION, CONTROL, DATA, EventTensor, Graph, Ints, Op, Scale, TaskClass
from .model import Model, tiles

MAX_TASKS = 1 << 22

_WORKER_BYTES_PER_NS = 36.0
"""One multiprocessor's share of an H200's memory bandwidth (4.8 TB/s over 132)."""
_WORKER_FLOP_PER_NS = 7500.0
"""One multiprocessor's share of its dense bf16 rate (990 TFLOP/s over 132)."""
_WEIGHT_BYTES = 2

_COORDINATES = ("slot", "head", "expert", "n0", "n1", "round")
_REGION = {
    Op.EMBED: "residual[slot, :]",
    Op.NORM1: "residual[slot, :], x[slot, :]",
    Op.QKV: "qkv[:, tile]",
    Op.ATTN: "attn[slot, head, :], kv_cache[slot, position, head, :]",
    Op.OPROJ: "partial[:, tile]",
    Op.NORM2: "residual[slot, :], x[slot, :]",
    Op.GATE_UP: "act[:, tile]",
    Op.DOWN: "partial[:, tile]",
    Op.ROUTER: "routes[slot, :]",
    Op.EXPERT_UP: "expert_act[expert, routed, tile]",
    Op.EXPERT_DOWN: "expert_out[expert, routed, tile]",
    Op.COMBINE: "partial[slot, :]",
    Op.FINAL_NORM: "x[slot, :]",
    Op.LM_HEAD: "logits[:, tile]",
    Op.SAMPLE: "token[slot]",
    Op.ATTN_SEND: "peer.inbox[round, rank, :]",
    Op.ATTN_RECV: "partial[:, :]",
    Op.MLP_SEND: "peer.inbox[round, rank, :]",
    Op.MLP_RECV: "partial[:, :]",
    Op.LOGITS_SEND: "peer.inbox[round, rank, :]",
    Op.LOGITS_RECV: "best[:, :]",
}


class _Cost:
    """Nominal duration of a kind of task: (cost_ns, unit_ns, scale)."""

    @staticmethod
    def gemm(k: int, n: NDArray[np.int64], scale: Scale = Scale.BATCH) -> dict[str, Any]:
        weights = k * n * _WEIGHT_BYTES / _WORKER_BYTES_PER_NS
        return {"cost_ns": (400 + weights).astype(np.int64), "unit_ns": 2 * k * n / _WORKER_FLOP_PER_NS, "scale": scale}

    @staticmethod
    def rows(width: int) -> dict[str, Any]:
        """A pass over a slot's vectors of `width` elements."""
        return {"cost_ns": 300, "unit_ns": 8 * width / _WORKER_BYTES_PER_NS, "scale": Scale.SLOT}

    @staticmethod
    def attention(head_dim: int) -> dict[str, Any]:
        bytes_ = 2 * head_dim * _WEIGHT_BYTES
        return {"cost_ns": 500, "unit_ns": bytes_ / _WORKER_BYTES_PER_NS, "scale": Scale.POSITION}

    @staticmethod
    def link(nbytes: int) -> dict[str, Any]:
        return {"cost_ns": 400 + int(nbytes / _WORKER_BYTES_PER_NS), "unit_ns": 0.0, "scale": Scale.FIXED}


class _Builder:
    """Collects blocks of tasks, event tensors and releases; `finish` makes the arrays."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.classes: list[TaskClass] = [TaskClass("", Op.NONE, -1, "")]
        self.class_ids: dict[tuple[Op, int], int] = {}
        self.tensors: dict[tuple[str, int], EventTensor] = {}
        self.blocks: list[dict[str, NDArray[Any]]] = []
        self.released: list[tuple[Ints, Ints]] = []
        self.next_task = 1
        self.next_dep = 1
        self.next_phase = 0

    def event(self, name: str, layer: int, rank: int, shape: tuple[int, ...] = (), kind: int = DATA) -> int:
        """First dep of an event tensor, made when first asked for (a sender asks for its peers')."""
        full = f"l{layer:02d}.{name}" if layer >= 0 else name
        tensor = self.tensors.get((full, rank))
        if tensor is None:
            tensor = EventTensor(full, rank, shape, kind, self.next_dep)
            self.tensors[full, rank] = tensor
            self.next_dep += int(np.prod(shape, dtype=np.int64))
        return tensor.first

    def add(self, op: Op, layer: int, rank: int, count: int, tile: ArrayLike, **columns: Any) -> Ints:
        """A block of tasks of one class; scalars in `columns` stand for every one of them. Their ids."""
        if self.next_task + count > MAX_TASKS:
            raise Usage(
                "cannot build the model", f"more than {MAX_TASKS} tasks", "make it smaller, or its tiles larger"
            )
        key = (op, layer)
        if key not in self.class_ids:
            name = f"l{layer:02d}.{op.name.lower()}" if layer >= 0 else op.name.lower()
            self.class_ids[key] = len(self.classes)
            self.classes.append(TaskClass(name, op, layer, _REGION[op]))
        block: dict[str, Any] = dict.fromkeys(_COORDINATES, -1) | {"dep": 0, "blocking": 0, "bytes": 0} | columns
        block |= {"op": op, "task_class": self.class_ids[key], "tile": tile, "rank": rank, "layer": layer}
        block["phase"] = self.next_phase
        self.next_phase += 1
        self.blocks.append({k: np.broadcast_to(np.asarray(v), (count,)) for k, v in block.items()})
        ids = np.arange(self.next_task, self.next_task + count, dtype=np.int64)
        self.next_task += count
        return ids

    def release(self, tasks: Ints, deps: ArrayLike) -> None:
        """Each of `tasks` releases the dep beside it (or the one dep)."""
        self.released.append((tasks, np.broadcast_to(np.asarray(deps, dtype=np.int64), tasks.shape)))

    def per_slot(self, op: Op, layer: int, rank: int, dep: ArrayLike, width: int, **columns: Any) -> Ints:
        slots = np.arange(self.model.slots)
        return self.add(op, layer, rank, len(slots), slots, slot=slots, dep=dep, **(_Cost.rows(width) | columns))

    def columns(
        self, op: Op, layer: int, rank: int, dep: ArrayLike, k: int, width: int, tile: int, fold: int = 1
    ) -> Ints:
        """Tiles of a matrix product with `k` rows of weights; `fold`: weight columns per output column."""
        at = np.arange(tiles(width, tile))
        n0 = at * tile
        n1 = np.minimum(n0 + tile, width)
        return self.add(op, layer, rank, len(at), at, n0=n0, n1=n1, dep=dep, **_Cost.gemm(k, (n1 - n0) * fold))

    def exchange(self, send: Op, receive: Op, layer: int, rank: int, round_: int, dep: int, nbytes: int) -> int:
        """One communication round of this rank with all its peers. The dep that says it is over here."""
        name = send.name.lower().removesuffix("_send")
        peers = [r for r in range(self.model.ranks) if r != rank]
        cost = _Cost.link(nbytes)
        out = self.add(send, layer, rank, 1, round_, round=round_, dep=dep, bytes=nbytes, **cost)
        sent = self.event(f"{name}_sent", layer, rank)
        self.release(out, sent)
        for peer in peers:
            self.release(out, self.event(f"{name}_arrived", layer, peer, kind=COMMUNICATION))
        arrived = self.event(f"{name}_arrived", layer, rank, kind=COMMUNICATION)
        into = self.add(receive, layer, rank, 1, round_, round=round_, dep=sent, blocking=arrived, bytes=nbytes, **cost)
        reduced = self.event(f"{name}_reduced", layer, rank)
        self.release(into, reduced)
        return reduced

    def finish(self) -> Graph:
        tasks, deps = self.next_task, self.next_dep
        dtypes = {"op": "u1", "task_class": "u2", "tile": "u4", "rank": "u1", "bytes": "i8", "cost_ns": "i8"}
        dtypes |= {"unit_ns": "f8", "scale": "u1"}
        columns: dict[str, NDArray[Any]] = {}
        for name in self.blocks[0]:
            none = -1 if name in (*_COORDINATES, "layer") else 0
            columns[name] = np.concatenate([[none], *(b[name] for b in self.blocks)]).astype(dtypes.get(name, "i4"))
        by = np.concatenate([t for t, _ in self.released])
        to = np.concatenate([d for _, d in self.released])
        order = np.lexsort((to, by))
        tensors = sorted(self.tensors.values(), key=lambda t: t.first)
        sizes = [int(np.prod(t.shape, dtype=np.int64)) for t in tensors]
        ids = np.arange(1, tasks)
        waits = np.concatenate([columns["dep"][1:], columns["blocking"][columns["blocking"] > 0]])
        waiting = np.concatenate([ids, ids[columns["blocking"][1:] > 0]])
        by_dep = np.lexsort((waiting, waits))
        releasing_class = columns["task_class"][by].astype(np.int64)
        low, high = np.full(deps, 1 << 20), np.full(deps, -1)
        np.minimum.at(low, to, releasing_class)
        np.maximum.at(high, to, releasing_class)
        return Graph(
            model=self.model,
            classes=tuple(self.classes),
            tensors=tuple(tensors),
            release_ptr=np.searchsorted(by[order], np.arange(tasks + 1)),
            release_dep=to[order].astype("i4"),
            waiter_ptr=np.searchsorted(waits[by_dep], np.arange(deps + 1)),
            waiter_task=waiting[by_dep].astype("i4"),
            wanted=np.bincount(to, minlength=deps).astype("i4"),
            dep_kind=np.concatenate([[0], np.repeat([t.kind for t in tensors], sizes)]).astype("u1"),
            dep_tensor=np.concatenate([[-1], np.repeat(np.arange(len(tensors)), sizes)]).astype("i4"),
            dep_rank=np.concatenate([[0], np.repeat([t.rank for t in tensors], sizes)]).astype("u1"),
            producer_class=np.where(low == high, low, -1).astype("i4"),
            rank_ptr=1 + np.searchsorted(columns["rank"][1:], np.arange(self.model.ranks + 1)),
            end=self.event("end", -1, 0, kind=CONTROL),
            **columns,
        )


def _heads_of(model: Model, n0: int, n1: int) -> list[int]:
    """Local query heads that need some of the QKV columns n0 … n1 - 1."""
    heads: set[int] = set()
    group = model.heads // model.kv_heads
    for unit in range(n0 // model.head_dim, (n1 - 1) // model.head_dim + 1):
        if unit < model.local_heads:
            heads.add(unit)
        else:
            kv = (unit - model.local_heads) % model.local_kv_heads
            heads.update(range(kv * group, (kv + 1) * group))
    return sorted(heads)


def _attention(b: _Builder, layer: int, rank: int, dep: ArrayLike) -> int:
    """Norm, QKV, attention, output projection. The dep that says that the block's sum over ranks is ready."""
    m = b.model
    normed = b.event("norm1", layer, rank)
    b.release(b.per_slot(Op.NORM1, layer, rank, dep, m.d_model), normed)
    qkv = b.event("qkv", layer, rank, (m.local_heads,))
    tasks = b.columns(Op.QKV, layer, rank, normed, m.d_model, m.qkv_columns, m.qkv_tile)
    for i, task in enumerate(tasks):
        heads = _heads_of(m, i * m.qkv_tile, min((i + 1) * m.qkv_tile, m.qkv_columns))
        b.release(np.full(len(heads), task), qkv + np.array(heads))
    local = np.repeat(np.arange(m.local_heads), m.slots)
    slot = np.tile(np.arange(m.slots), m.local_heads)
    head = local + rank * m.local_heads
    attended = b.event("attn", layer, rank)
    cost = _Cost.attention(m.head_dim)
    tile = head << 16 | slot
    b.release(b.add(Op.ATTN, layer, rank, len(slot), tile, slot=slot, head=head, dep=qkv + local, **cost), attended)
    projected = b.event("oproj", layer, rank)
    k = m.local_heads * m.head_dim
    b.release(b.columns(Op.OPROJ, layer, rank, attended, k, m.d_model, m.out_tile), projected)
    if m.ranks == 1:
        return projected
    nbytes = m.slots * m.d_model * _WEIGHT_BYTES
    return b.exchange(Op.ATTN_SEND, Op.ATTN_RECV, layer, rank, 2 * layer, projected, nbytes)


def _dense(b: _Builder, layer: int, rank: int, dep: int) -> int:
    """Gated MLP. The dep of its output."""
    m = b.model
    normed, gated, down = (b.event(name, layer, rank) for name in ("norm2", "gate_up", "down"))
    b.release(b.per_slot(Op.NORM2, layer, rank, dep, m.d_model), normed)
    b.release(b.columns(Op.GATE_UP, layer, rank, normed, m.d_model, m.local_ffn, m.ffn_tile, fold=2), gated)
    b.release(b.columns(Op.DOWN, layer, rank, gated, m.local_ffn, m.d_model, m.out_tile), down)
    return down


def _experts(b: _Builder, layer: int, rank: int, dep: int) -> NDArray[np.int64]:
    """Mixture of experts: the rank's own experts over the slots routed to them. The dep of each slot's output."""
    m = b.model
    slots = np.arange(m.slots)
    mine = rank * (m.experts // m.ranks) + np.arange(m.experts // m.ranks)
    normed = b.event("norm2", layer, rank, (m.slots,))
    b.release(b.per_slot(Op.NORM2, layer, rank, dep, m.d_model), normed + slots)
    routed = b.event("routed", layer, rank)
    b.release(b.per_slot(Op.ROUTER, layer, rank, normed + slots, m.d_model), routed)

    def tiled(op: Op, dep: ArrayLike, k: int, width: int, tile: int, fold: int) -> Ints:
        count = tiles(width, tile)
        at, expert = np.tile(np.arange(count), len(mine)), np.repeat(mine, count)
        n0 = at * tile
        n1 = np.minimum(n0 + tile, width)
        cost = _Cost.gemm(k, (n1 - n0) * fold, Scale.EXPERT)
        deps = np.broadcast_to(np.asarray(dep), (len(mine),)).repeat(count)
        return b.add(op, layer, rank, len(at), expert << 16 | at, expert=expert, n0=n0, n1=n1, dep=deps, **cost)

    acted = b.event("expert_up", layer, rank, (len(mine),)) + np.arange(len(mine))
    up = tiled(Op.EXPERT_UP, routed, m.d_model, m.local_ffn, m.ffn_tile, 2)
    b.release(up, acted.repeat(tiles(m.local_ffn, m.ffn_tile)))
    mixed = b.event("expert_down", layer, rank)
    b.release(tiled(Op.EXPERT_DOWN, acted, m.local_ffn, m.d_model, m.out_tile, 1), mixed)
    combine = b.per_slot(Op.COMBINE, layer, rank, mixed, m.d_model * m.top_k)
    # A peer is sent the whole batch, so with several ranks one counter stands for all slots.
    combined = b.event("combined", layer, rank, (m.slots,) if m.ranks == 1 else ()) + (slots if m.ranks == 1 else 0)
    b.release(combine, combined)
    return np.asarray(combined)


def _rank(b: _Builder, rank: int) -> None:
    m = b.model
    slots = np.arange(m.slots)
    embedded = b.event("embed", -1, rank, (m.slots,)) + slots
    b.release(b.per_slot(Op.EMBED, -1, rank, 0, m.d_model), embedded)
    dep: ArrayLike = embedded
    for layer in range(m.layers):
        summed = _attention(b, layer, rank, dep)
        dep = _experts(b, layer, rank, summed) if m.experts else _dense(b, layer, rank, summed)
        if m.ranks > 1:
            nbytes = m.slots * m.d_model * _WEIGHT_BYTES
            dep = b.exchange(Op.MLP_SEND, Op.MLP_RECV, layer, rank, 2 * layer + 1, int(np.asarray(dep)), nbytes)
    normed, logits = b.event("final_norm", -1, rank), b.event("logits", -1, rank)
    b.release(b.per_slot(Op.FINAL_NORM, -1, rank, dep, m.d_model), normed)
    width = m.vocab // m.ranks
    b.release(b.columns(Op.LM_HEAD, -1, rank, normed, m.d_model, width, m.vocab_tile), logits)
    if m.ranks > 1:
        logits = b.exchange(Op.LOGITS_SEND, Op.LOGITS_RECV, -1, rank, 2 * m.layers, logits, m.slots * 8)
    b.release(b.per_slot(Op.SAMPLE, -1, rank, logits, width), b.event("end", -1, 0, kind=CONTROL))


@lru_cache(maxsize=4)
def build_graph(model: Model) -> Graph:
    """The task graph of one decode step of `model` over all its ranks.

    Raises Usage when it would have more than MAX_TASKS tasks.
    """
    b = _Builder(model)
    for rank in range(model.ranks):
        b.next_phase = 0
        _rank(b, rank)
    return b.finish()
