"""The graph, the serving plan and the fault controls as the arrays that the kernel reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import Usage
from ....store.tables import REQUESTS
from ..faults import Active, Injector
from ..graph import Graph, Op
from ..model import Model
from ..schedule import Schedule
from ..serving import Plan
from .parameters import DEPENDENCY, NO_SLOT, RELEASE, RELEASE_BITS, TASK

U32 = NDArray[np.uint32]
SAMPLED = 0xFFFF_FFFF
"""In `forced_token`: the token that the request's last step sampled."""
ROWS = 8
LONGEST_NS = 0xFFFF_FFFF
SHARED_BYTES_MOST = 190_000


def refuse(model: Model) -> None:
    """Raises Usage, naming the size, for a model that this kernel does not compute."""
    what = "cannot run this model on the cuda engine"
    if model.experts:
        raise Usage(what, f"experts={model.experts}, and it computes dense models only", "use experts=0")
    if model.ranks != 1:
        raise Usage(what, f"ranks={model.ranks}, and it runs on one device", "use ranks=1")
    if model.head_dim not in (16, 32, 64, 128):
        raise Usage(what, f"head_dim={model.head_dim} is none of 16, 32, 64, 128", "choose one of them")
    for name in ("d_model", "ffn"):
        if getattr(model, name) % 4:
            raise Usage(what, f"{name}={getattr(model, name)} is no multiple of 4", "round it up")
    if operator_bytes(model) > SHARED_BYTES_MOST:
        need = f"its widest product needs {operator_bytes(model):,} bytes of shared memory"
        raise Usage(what, f"{need}, above {SHARED_BYTES_MOST:,}", "make d_model or ffn smaller")


def operator_bytes(model: Model) -> int:
    """Shared memory that the operators of a block need: a product's input rows, or an attention head's scores."""
    fixed = 2 * 16 * 4
    widest = max(model.d_model, model.ffn, model.heads * model.head_dim)
    attention = 3 * model.head_dim + 4 * 128 + model.context
    return -(-(fixed + 4 * max(ROWS * widest, attention, model.d_model)) // 128) * 128


def task_table(graph: Graph) -> NDArray[np.void]:
    """[tasks + 1] descriptors."""
    out = np.zeros(graph.tasks + 1, TASK)
    out["tile"], out["task_class"], out["dep"], out["op"] = graph.tile, graph.task_class, graph.dep, graph.op
    out["slot"] = np.where(graph.slot < 0, NO_SLOT, graph.slot)
    out["dep_kind"] = graph.dep_kind[graph.dep]
    out["layer"] = np.maximum(graph.layer, 0)
    out["n0"] = np.where(graph.op == Op.ATTN, graph.head, np.maximum(graph.n0, 0))
    out["n1"] = np.maximum(graph.n1, 0)
    out["release"], out["releases"] = graph.release_ptr[:-1], np.diff(graph.release_ptr)
    return out


def dependency_table(graph: Graph) -> NDArray[np.void]:
    """[deps + 1] counters with their waiters, which the graph numbers consecutively and which are of one class."""
    out = np.zeros(graph.deps + 1, DEPENDENCY)
    out["wanted"], out["kind"] = graph.wanted, graph.dep_kind
    for dep in range(graph.deps + 1):
        waiters = graph.waiters(dep)
        if len(waiters):
            alike = len(set(graph.task_class[waiters].tolist())) == 1
            if not alike or not np.array_equal(waiters, np.arange(waiters[0], waiters[0] + len(waiters))):
                raise ValueError(f"the waiters of {graph.dep_name(dep)} are no run of one class")
            out["first"][dep], out["waiters"][dep] = waiters[0], len(waiters)
    return out


def release_table(graph: Graph, deps: NDArray[np.void]) -> NDArray[np.void]:
    """What tasks count up, in the order of graph.release_dep. Raises Usage when a task releases too many."""
    if len(graph.release_dep) >= 1 << RELEASE_BITS or np.diff(graph.release_ptr).max() >= 1 << (32 - RELEASE_BITS):
        raise Usage(
            "cannot run this model on the cuda engine", "a task releases too many dependencies", "make tiles smaller"
        )
    out = np.zeros(len(graph.release_dep), RELEASE)
    out["dep"] = graph.release_dep
    for name in ("wanted", "first", "waiters"):
        out[name] = deps[name][graph.release_dep]
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
    longest = max(int(max(a.dep_postpone_ns.max(), a.task_starve_ns.max())) for a in active)
    if longest > LONGEST_NS:
        what = "cannot apply a fault control on the cuda engine"
        raise Usage(what, f"it holds something back for {longest} ns, above {LONGEST_NS}", "choose a lower strength")
    crowd = [(a.over_worker if a.over_share > 0 else 0xFFFF_FFFF, int(a.over_share * 0xFFFF_FFFF)) for a in active]
    return {
        "fault_phase": phase,
        "fault_factor": np.stack([a.class_factor for a in active]).astype("<f4"),
        "fault_postpone": np.stack([a.dep_postpone_ns for a in active]).astype("<u4"),
        "fault_starve": np.stack([a.task_starve_ns for a in active]).astype("<u4"),
        "fault_crowd": np.array(crowd, np.int64).astype("<u4"),
    }
