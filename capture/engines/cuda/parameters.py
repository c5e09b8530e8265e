"""The kernel's one parameter block, `struct Engine` of capture/device/engine.cuh, as a numpy record."""

from __future__ import annotations

import numpy as np

_POINTERS = """
    tasks deps releases list_ptr list_task
    request position cache_row forced_token request_set event_ptr event
    fault_phase fault_factor fault_postpone fault_starve fault_crowd
    counters satisfied queues entries run
    cursors workers summaries rings
    hook_queues programs running books deep progress exports export_words
    control host step_begun
    native
    embedding norms w_qkv w_o w_gate w_up w_down w_head rotary
    residual x qkv heads_out partial act logits keys values token used_token kept_logits
"""
_WORDS = "limit_ns epoch_ns block_bytes"
_HALVES = """
    blocks n_tasks n_deps n_classes end_dep steps slots dynamic capacity pressure faulty operator_bytes
    ring_blocks block_rows summary_rows monitors policy exported
    layers d_model heads kv_heads head_dim ffn vocab context cache_rows keep_every native_slots
"""
FIELDS = tuple(
    (name, kind) for names, kind in ((_POINTERS, "u8"), (_WORDS, "u8"), (_HALVES, "u4")) for name in names.split()
)
ENGINE = np.dtype([(name, "<" + kind) for name, kind in FIELDS], align=True)

LINE_BYTES = 128
RUN_LINES = ("begun", "leave", "stop", "control")
"""Lines of `struct Run`."""
LEAVE = ("running", "done", "stopped", "deadline")
"""`enum Leave`."""
HOST_STOP, HOST_STEP, HOST_PING, HOST_PING_TIME, HOST_PING_ECHO, HOST_GO, HOST_CHANGE = 0, 8, 16, 24, 32, 40, 64
"""`enum HostWord`."""

TASK = np.dtype(
    [
        ("tile", "<u4"),
        ("task_class", "<u2"),
        ("slot", "<u2"),
        ("dep", "<u4"),
        ("dep_kind", "u1"),
        ("op", "u1"),
        ("layer", "<u2"),
        ("n0", "<u4"),
        ("n1", "<u4"),
        ("release", "<u4"),
        ("releases", "<u4"),
    ]
)
"""`struct Task`."""
NO_SLOT = 0xFFFF
DEPENDENCY = np.dtype([("wanted", "<u4"), ("kind", "<u4"), ("first", "<u4"), ("waiters", "<u4")])
"""`struct Dependency`."""
RELEASE = np.dtype([("dep", "<u4"), ("wanted", "<u4"), ("first", "<u4"), ("waiters", "<u4")])
"""`struct Release`."""
RELEASE_BITS = 24
"""Of a mail's word for the place of a task's releases; the other 8 say how many."""
