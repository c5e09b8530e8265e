"""What the host gives the kernel: `struct Segment` of capture/device/segment.cuh and `struct Engine` of engine.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def _record(pointers: str, words: str, halves: str) -> np.dtype[np.void]:
    """A struct of pointers, then u64, then u32."""
    kinds = ((pointers, "<u8"), (words, "<u8"), (halves, "<u4"))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


SEGMENT = _record(
    """
    cursors workers summaries rings control host exports export_words
    orders hook_queues programs running books deep progress native
    tasks deps request request_set
    """,
    "limit_ns epoch_ns block_bytes",
    """
    blocks roles ranks rank_blocks rounds n_tasks n_deps task_bytes dep_bytes end_dep steps slots
    monitors ring_blocks block_rows summary_rows policy exported native_slots
    """,
)
SEGMENT_SYMBOL = "_ZN2ms7segmentE"
"""The constant `ms::segment`, as a module knows it."""
ENGINE_SYMBOL = "_ZN2ms6engineE"
ENGINE = _record(
    """
    tasks deps releases list_ptr list_task
    request position cache_row forced_token request_set event_ptr event
    fault_phase fault_factor fault_postpone fault_starve fault_crowd fault_skew fault_comm
    counters satisfied ended queues entries run step_begun
    embedding norms w_router rotary shards kept_logits
    """,
    "",
    """
    blocks rank_blocks rank_tasks ranks rounds n_tasks n_deps n_classes end_dep steps slots dynamic capacity pressure
    faulty operator_bytes layers d_model heads kv_heads head_dim ffn experts top_k vocab vocab_part context cache_rows
    keep_every
    """,
)
SHARD = _record(
    """
    w_qkv w_o w_gate w_up w_down w_head
    residual x qkv heads_out partial act logits expert_out route route_weight kept_routes
    keys values token used_token
    best inbox flags received run
    """,
    "rank",
    "",
)
"""`struct Shard` of engine.cuh: one for each rank."""

LINE_BYTES = 128
RUN_LINES = ("begun", "leave")
"""Lines of `struct Run`."""
ORDER_LINES = ("stop", "control")
"""Lines of `struct Orders`."""
LEAVE = ("running", "done", "stopped", "deadline", "overtaken")
"""`enum Leave`."""
HOST_STOP, HOST_STEP, HOST_PING, HOST_PING_TIME, HOST_PING_ECHO, HOST_GO, HOST_CHANGE = 0, 8, 16, 24, 32, 40, 64
"""`enum HostWord`."""

TASK_ROW = np.dtype(
    [
        ("tile", "<u4"),
        ("task_class", "<u2"),
        ("slot", "<u2"),
        ("dep", "<u4"),
        ("dep_kind", "u1"),
        ("op", "u1"),
        ("layer", "<u2"),
    ]
)
"""`struct TaskRow`."""
TASK = np.dtype(
    [
        *TASK_ROW.descr,
        ("n0", "<u4"),
        ("n1", "<u4"),
        ("release", "<u4"),
        ("releases", "<u4"),
    ]
)
"""`struct Task`, which begins with a TaskRow."""
NO_SLOT = 0xFFFF
RECEIVES = 1 << 31
"""Of `waiters`: the one that waits is a receive."""
DEP_ROW = np.dtype([("wanted", "<u4"), ("kind", "<u4")])
"""`struct DepRow`."""
DEPENDENCY = np.dtype([*DEP_ROW.descr, ("first", "<u4"), ("waiters", "<u4")])
"""`struct Dependency`, which begins with a DepRow."""
RELEASE = np.dtype([("dep", "<u4"), ("wanted", "<u4"), ("first", "<u4"), ("waiters", "<u4")])
"""`struct Release`."""
RELEASE_BITS = 24
"""Of a mail's word for the place of a task's releases; the other 8 say how many."""


def fill(
    cupy: Any, module: Any, symbol: str, record: np.dtype[np.void], values: Mapping[str, int], stream: Any
) -> None:
    """Write a loaded module's constant, in `stream`: every field of `record` that `values` names, the others 0.

    Values that are no field of it are another constant's, and left out.
    """
    constant = np.zeros(1, record)
    for field in values.keys() & set(record.names or ()):
        constant[field] = values[field]
    whole = cupy.ndarray((record.itemsize,), np.uint8, module.get_global(symbol))
    whole.set(constant.view(np.uint8), stream=stream)
