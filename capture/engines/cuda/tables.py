"""The graph, the serving plan and the fault controls as the arrays that the kernel reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import Usage
from ....store.tables import REQUESTS
from ..faults import Active, Injector
from ..graph import COMMUNICATION, SENDS, Graph, Op
from ..graph import RECEIVES as RECEIVE_OPS
from ..model import Model
from ..schedule import Schedule
from ..serving import Plan
from .parameters import DEPENDENCY, NO_SLOT, RECEIVES, RELEASE, RELEASE_BITS, SHARD, TASK

U32 = NDArray[np.uint32]
SAMPLED = 0xFFFF_FFFF
"""In `forced_token`: the token that the request's last step sampled."""
ROWS = 8
LONGEST_NS = 0xFFFF_FFFF
SHARED_BYTES_MOST = 190_000
MOST_CHOSEN = 32
"""Experts of a token: a lane of the warp that chooses holds one each."""


def refuse(model: Model) -> None:
    """Raises Usage, naming the size, for a model that this kernel does not compute."""
    what = "cannot run this model on the cuda engine"
    if model.head_dim not in (16, 32, 64, 128):
        raise Usage(what, f"head_dim={model.head_dim} is none of 16, 32, 64, 128", "choose one of them")
    if model.d_model % 4:
        raise Usage(what, f"d_model={model.d_model} is no multiple of 4", "round it up")
    if model.local_ffn % 4:
        each = f", {model.local_ffn} on each of {model.ranks} ranks," if model.local_ffn != model.ffn else ""
        raise Usage(what, f"ffn={model.ffn}{each} is no multiple of 4", "round it up")
    if model.experts and model.top_k > MOST_CHOSEN:
        raise Usage(what, f"top_k={model.top_k} is above {MOST_CHOSEN}", "make it smaller")
    if operator_bytes(model) > SHARED_BYTES_MOST:
        need = f"its widest product needs {operator_bytes(model):,} bytes of shared memory"
        raise Usage(what, f"{need}, above {SHARED_BYTES_MOST:,}", "make d_model or ffn smaller")
    if model.ranks > 1 and sent_bytes(model).max() >= 1 << 32:
        size = f"slots={model.slots} of d_model={model.d_model} are 4 GiB or more to send to {model.ranks - 1} peers"
        raise Usage(what, size, "make them smaller")


def rank_blocks(model: Model, multiprocessors: int) -> int:
    """Blocks of one rank, one on each multiprocessor: what does not divide stays idle.

    Raises Usage where there are fewer multiprocessors than ranks.
    """
    if multiprocessors < model.ranks:
        what = "cannot run this model on the cuda engine"
        raise Usage(
            what, f"ranks={model.ranks} need a multiprocessor each, and there are {multiprocessors}", "use fewer"
        )
    return multiprocessors // model.ranks


def operator_bytes(model: Model) -> int:
    """Shared memory that the operators of a block need, after the rank's pointers: a product's input rows (and which
    they are, where that is chosen), an attention head's scores, or a router's."""
    fixed = -(-SHARD.itemsize // 16) * 16 + 2 * 16 * 4
    product = ROWS * max(model.d_model, model.local_ffn, model.local_heads * model.head_dim)
    listed = -(-model.slots // 4) * 4 if model.experts else 0
    attention = 3 * model.head_dim + 4 * 128 + model.context
    return -(-(fixed + 4 * max(listed + product, attention, model.d_model + model.experts)) // 128) * 128


def sent_bytes(model: Model) -> NDArray[np.int64]:
    """[2] what a rank sends in a round, to all its peers together: sums of all slots; best logits with their index."""
    return np.array([model.slots * model.d_model * 4, model.slots * 8]) * (model.ranks - 1)


def task_table(graph: Graph) -> NDArray[np.void]:
    """[tasks + 1] descriptors."""
    m, out = graph.model, np.zeros(graph.tasks + 1, TASK)
    if (np.diff(graph.rank_ptr) != graph.tasks // m.ranks).any():
        raise ValueError("the ranks have not the same tasks")
    out["tile"], out["task_class"], out["dep"], out["op"] = graph.tile, graph.task_class, graph.dep, graph.op
    out["slot"] = np.where(graph.slot < 0, NO_SLOT, graph.slot)
    out["dep_kind"] = graph.dep_kind[graph.dep]
    out["layer"] = np.maximum(graph.layer, 0)
    head = graph.head - graph.rank.astype(np.int64) * m.local_heads
    sums, best = sent_bytes(m)
    out["n0"] = np.select(
        [graph.op == Op.ATTN, np.isin(graph.op, RECEIVE_OPS)], [head, graph.blocking], graph.n0.clip(0)
    )
    out["n1"] = np.select([graph.op == Op.LOGITS_SEND, np.isin(graph.op, SENDS)], [best, sums], np.maximum(graph.n1, 0))
    ptr, _ = released(graph)
    out["release"], out["releases"] = ptr[:-1], np.diff(ptr)
    return out


def released(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which dependencies tasks count up, as `ptr, dep`: all but arrivals, which the sender's data tells itself."""
    counted = graph.dep_kind[graph.release_dep] != COMMUNICATION
    before = np.concatenate([[0], np.cumsum(counted)])
    return before[graph.release_ptr], graph.release_dep[counted].astype(np.int64)


def dependency_table(graph: Graph) -> NDArray[np.void]:
    """[deps + 1] counters with their waiters, which the graph numbers consecutively and which are of one class.

    An arrival has none here: who waits for it is in its receive. Those of 0 are rank 0's, and every rank's likewise.
    """
    out = np.zeros(graph.deps + 1, DEPENDENCY)
    out["wanted"], out["kind"] = graph.wanted, graph.dep_kind
    for dep in np.flatnonzero(graph.dep_kind != COMMUNICATION).tolist():
        waiters = graph.waiters(dep)
        if dep == 0:
            every, waiters = waiters, waiters[graph.rank[waiters] == 0]
            apart = np.arange(graph.model.ranks)[:, None] * (graph.tasks // graph.model.ranks)
            if not np.array_equal(np.sort(every), np.sort((waiters + apart).reshape(-1))):
                raise ValueError("the ranks begin with different tasks")
        if len(waiters):
            alike = len(set(graph.task_class[waiters].tolist())) == 1
            if not alike or not np.array_equal(waiters, np.arange(waiters[0], waiters[0] + len(waiters))):
                raise ValueError(f"the waiters of {graph.dep_name(dep)} are no run of one class")
            receives = RECEIVES if graph.op[waiters[0]] in RECEIVE_OPS else 0
            out["first"][dep], out["waiters"][dep] = waiters[0], len(waiters) | receives
    return out


def release_table(graph: Graph, deps: NDArray[np.void]) -> NDArray[np.void]:
    """What tasks count up, in the order of `released`. Raises Usage when a task releases too many."""
    ptr, released_deps = released(graph)
    if len(released_deps) >= 1 << RELEASE_BITS or np.diff(ptr).max() >= 1 << (32 - RELEASE_BITS):
        raise Usage(
            "cannot run this model on the cuda engine", "a task releases too many dependencies", "make tiles smaller"
        )
    out = np.zeros(len(released_deps), RELEASE)
    out["dep"] = released_deps
    for name in ("wanted", "first", "waiters"):
        out[name] = deps[name][released_deps]
    return out


def graph_tables(graph: Graph, schedule: Schedule | None) -> dict[str, NDArray[Any]]:
    """Arrays by the name of their parameter. Without a schedule the lists are empty."""
    deps = dependency_table(graph)
    lists = schedule.list_ptr if schedule else np.zeros(1, np.int64)
    listed = schedule.list_task if schedule else np.zeros(1, np.int32)
    return {
        "tasks": task_table(graph),
        "deps": deps,
        "releases": release_table(graph, deps),
        "list_ptr": lists.astype("<u4"),
        "list_task": listed.astype("<u4"),
    }


def sizes(graph: Graph) -> dict[str, int]:
    """Sizes of graph and model, by the name of their parameter; heads, feed-forward and vocabulary are a rank's own."""
    m = graph.model
    return {
        "ranks": m.ranks,
        "rank_tasks": graph.tasks // m.ranks,
        "rounds": m.rounds,
        "n_tasks": graph.tasks,
        "task_bytes": TASK.itemsize,
        "dep_bytes": DEPENDENCY.itemsize,
        "n_deps": graph.deps,
        "n_classes": len(graph.classes),
        "end_dep": graph.end,
        "slots": m.slots,
        "operator_bytes": operator_bytes(m),
        "layers": m.layers,
        "d_model": m.d_model,
        "heads": m.local_heads,
        "kv_heads": m.local_kv_heads,
        "head_dim": m.head_dim,
        "ffn": m.local_ffn,
        "experts": m.experts,
        "top_k": m.top_k,
        "vocab": m.vocab,
        "vocab_part": m.vocab // m.ranks,
        "context": m.context,
    }


@dataclass(frozen=True)
class Served:
    """A plan as arrays [steps, slots], and how many cache rows it takes.

    A request keeps its row of the cache, and its last token, wherever it sits: a preempted one resumes in any slot.
    """

    arrays: dict[str, NDArray[Any]]
    cache_rows: int


def prompt_token(generation: NDArray[Any], position: NDArray[Any], vocab: int) -> U32:
    """The synthetic prompt: a token that depends on the request generation and the position alone."""
    h = generation.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + position.astype(np.uint64)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    return (h % np.uint64(vocab)).astype(np.uint32)


def serving_tables(plan: Plan, model: Model) -> Served:
    """Arrays of the plan by the name of their parameter.

    Raises Usage for a plan with prefill chunks: this kernel takes one token of a request per step.
    """
    if plan.tokens.max(initial=0) > 1:
        raise Usage("cannot plan the serving", "the cuda engine takes prompts token by token", "use chunk=1")
    rows, count = cache_rows(plan.request)
    prompts = np.zeros(int(plan.request.max(initial=0)) + 1, np.int64)
    at = REQUESTS.names.index("prompt_tokens")
    for told in plan.told:
        if told.table == REQUESTS.name and int(told.row[0]) < len(prompts):
            prompts[int(told.row[0])] = int(told.row[at])
    in_prompt = (plan.request > 0) & (plan.position < prompts[plan.request])
    forced = np.where(in_prompt, prompt_token(plan.request, plan.position, model.vocab), SAMPLED)
    events = np.zeros((max(len(plan.row_slot), 1), 4), "<u4")
    if len(plan.row_slot):
        events[:, 0], events[:, 1], events[:, 2] = plan.row_slot, plan.row_request, plan.row_state
    arrays = {
        "request": plan.request.astype("<u4"),
        "position": plan.position.astype("<u4"),
        "cache_row": rows,
        "forced_token": forced.astype("<u4"),
        "request_set": plan.request_set.astype("<u4"),
        "event_ptr": plan.row_ptr.astype("<u4"),
        "event": events,
    }
    return Served(arrays, count)


def cache_rows(request: NDArray[np.uint32]) -> tuple[U32, int]:
    """A cache row for each [step, slot], kept by a request generation from its first step to its last."""
    steps, _ = request.shape
    who = request.reshape(-1)
    step = np.repeat(np.arange(steps), request.shape[1])
    most = int(who.max(initial=0)) + 1
    first, last = np.full(most, steps), np.full(most, -1)
    np.minimum.at(first, who, step)
    np.maximum.at(last, who, step)
    row = np.zeros(most, np.uint32)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for generation in np.argsort(first[1:], kind="stable") + 1:
        if last[generation] < 0:
            continue
        free += [r for until, r in busy if until < first[generation]]
        busy = [(until, r) for until, r in busy if until >= first[generation]]
        if not free:
            free.append(count)
            count += 1
        row[generation] = free.pop()
        busy.append((int(last[generation]), int(row[generation])))
    return row[request], max(count, 1)


def fault_tables(injector: Injector, steps: int) -> dict[str, NDArray[Any]]:
    """The controls by phase: a phase is a run of steps in which the same ones are in force.

    Raises Usage for one that holds back for longer than the kernel can count.
    """
    phase = np.zeros(steps, np.uint32)
    active: list[Active] = []
    for step in range(steps):
        now = injector.active(step)
        if not active or active[-1] is not now:
            active.append(now)
        phase[step] = len(active) - 1
    held = (max(a.dep_postpone_ns.max(), a.task_starve_ns.max(), a.round_delay_ns.max()) for a in active)
    longest = max(int(ns) for ns in held)
    if longest > LONGEST_NS:
        what = "cannot apply a fault control on the cuda engine"
        raise Usage(what, f"it holds something back for {longest} ns, above {LONGEST_NS}", "choose a lower strength")
    crowd = [(a.over_worker if a.over_share > 0 else 0xFFFF_FFFF, int(a.over_share * 0xFFFF_FFFF)) for a in active]
    skew = [(max(a.skew_expert, 0), int(a.skew_share * 0xFFFF_FFFF)) for a in active]
    return {
        "fault_phase": phase,
        "fault_factor": np.stack([a.class_factor for a in active]).astype("<f4"),
        "fault_postpone": np.stack([a.dep_postpone_ns for a in active]).astype("<u4"),
        "fault_starve": np.stack([a.task_starve_ns for a in active]).astype("<u4"),
        "fault_crowd": np.array(crowd, np.int64).astype("<u4"),
        "fault_skew": np.array(skew, np.int64).astype("<u4"),
        "fault_comm": np.stack([a.round_delay_ns for a in active]).astype("<u4"),
    }
