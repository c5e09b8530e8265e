"""The tables that a synthetic recording carries: the compiler's, and those of requests, whose slots turn over.

Eight slots are always full. A request stays for `STAY` steps; the slots turn over one after another, so that the batch
changes every `STAY / SLOTS` steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from megascope.store import tables as tb
from megascope.store.trace import TraceWriter

SLOTS = 8
STAY = 160
_APART = STAY // SLOTS
_QUEUED_NS = 2_000_000
CLASSES = ("norm", "qkv", "attn_qk", "attn_pv", "o_proj", "all_reduce", "gate_up", "down", "lm_head", "sample")

Array = np.ndarray[Any, Any]


def request_of(step: Array, slot: Array) -> Array:
    """The request that has the slot in that step."""
    return (step + slot * _APART) // STAY * SLOTS + slot + 1


def set_of(step: Array) -> Array:
    """The request set of that step's batch."""
    return step // _APART + 1


def begins(step: Array, slot: Array) -> Array:
    """Whether it is the request's first step in its slot."""
    return ((step + slot * _APART) % STAY == 0) | (step == 0)


def ends(step: Array, slot: Array) -> Array:
    """Whether it is its last."""
    return (step + slot * _APART) % STAY == STAY - 1


def compiler_tables(blocks: int, phases: tuple[tuple[int, int], ...], kinds: tuple[int, ...]) -> dict[str, pa.Table]:
    """phases: (class, tasks) each. kinds: dep_class of what each phase waits for, and of the end."""
    classes = [
        {"id": i, "name": n, "operator": n, "layer": -1, "device_function": n, "tensor_region": "",
         "expected_dep_classes": [1]}
        for i, n in enumerate(CLASSES, 1)
    ]  # fmt: skip
    workers = [
        {"worker": w, "monitor": w % blocks, "sm": w % blocks, "role": "scheduler" if w >= blocks else "compute",
         "rank": 0}
        for w in range(2 * blocks)
    ]  # fmt: skip
    dependencies = [
        {"id": d, "name": f"phase[{d}]", "event_tensor": "phase", "coordinate": [d], "kind": kind,
         "wanted": phases[max(0, d - 2)][1], "producer_class": phases[max(0, d - 2)][0], "rank": 0}
        for d, kind in enumerate(kinds, 1)
    ]  # fmt: skip
    rows = {tb.TASK_CLASSES: classes, tb.WORKERS: workers, tb.DEPENDENCIES: dependencies}
    return {table.name: pa.Table.from_pylist(r, schema=table.schema) for table, r in rows.items()}


def write_requests(writer: TraceWriter, begun: list[int]) -> None:
    """What the engine told through its host ring. begun: device time of each step's begin, ns."""
    steps = np.arange(len(begun))
    requests, members, stays = [], [], []
    for slot in range(SLOTS):
        of = request_of(steps, np.array(slot))
        first = np.flatnonzero(begins(steps, np.array(slot)))
        last = np.append(first[1:] - 1, -1)
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            requests.append(
                {"request": int(of[a]), "slot": slot, "external_id": f"r{of[a]}", "model": "synthetic", "tenant": "",
                 "arrival": begun[a] - _QUEUED_NS, "prompt_tokens": 512, "max_tokens": STAY}
            )  # fmt: skip
            stays.append({"from_step": a, "to_step": b, "request": int(of[a]), "slot": slot, "position": 512})
    for first_step in range(0, len(begun), _APART):
        whole, step = int(set_of(np.array(first_step))), np.array(first_step)
        members += [{"request_set": whole, "request": int(request_of(step, np.array(s)))} for s in range(SLOTS)]
    for table, rows in ((tb.REQUESTS, requests), (tb.REQUEST_SETS, members), (tb.STEP_REQUESTS, stays)):
        writer.upsert(table.name, pa.RecordBatch.from_pylist(rows, schema=table.schema))
