"""Ring rows to measure with: those of a recorded trace, or made up but realistic.

The made-up ones are what a decode megakernel with one worker a multiprocessor fires: every worker takes the tasks of
one iteration after the other, in the order in which a dynamic scheduler would hand them out, and fires wait, resume,
start, complete and release for each. Times come in steps of 32 ns, durations depend on the class and vary by some
percent, and rows arrive as the drain sees them: a block of one worker after a block of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megascope.store.tables import HOOK_BY_NAME, PEER_NONE, RECORDER, REQUEST_SET_BIT, RING_ROW
from megascope.store.trace import Trace

CLASSES = ("norm", "qkv", "attn_qk", "attn_pv", "o_proj", "gate_up", "down", "sample")
_NS = np.array([1_800, 9_000, 6_500, 6_000, 7_500, 14_000, 11_000, 4_000])
_TASKS = np.array([8, 144, 256, 256, 96, 224, 112, 8])
_HOOKS = [HOOK_BY_NAME[h].id for h in ("wait", "resume", "start", "complete", "release")]
TICK = 32


def recorded(path: Path, block: int = 512) -> Iterator[pa.RecordBatch]:
    """The events of a recorded trace as the ring rows that they were, in blocks of one worker after the other."""
    with Trace.open(path) as trace:
        parts = [pq.read_table(p.path) for p in trace.verified("events")]
    for part in parts:
        filled: dict[str, Any] = {c: part[c] for c in part.column_names}
        columns = {c: values.fill_null(0).to_numpy() for c, values in filled.items()}
        timed = part["since_ns"].is_valid().to_numpy()
        columns["aux"] = np.where(timed, columns["t"] - columns["since_ns"], columns["aux"])
        # Arrival: each worker's rows in order, a block of one after a block of the next.
        first = np.flatnonzero(np.concatenate([[True], columns["worker"][1:] != columns["worker"][:-1]]))
        within = np.arange(len(timed)) - np.repeat(first, np.diff([*first, len(timed)]))
        order = np.argsort(within // block, kind="stable")
        arrays = [pa.array(columns[c.name][order].astype(RING_ROW.dtype[c.name])) for c in RING_ROW]
        yield from pa.Table.from_arrays(arrays, schema=RING_ROW.schema).to_batches(max_chunksize=block)


def blocks(
    rows: int, *, workers: int = 132, block: int = 512, layers: int = 16, seed: int = 1
) -> Iterator[pa.RecordBatch]:
    """At least `rows` ring rows in batches of `block`, workers interleaved block by block as a drain takes them."""
    per_task = len(_HOOKS)
    tasks = -(-rows // (workers * per_task))
    per_block = -(-block // per_task)
    rng = np.random.default_rng(seed)
    layer = np.repeat(np.arange(len(CLASSES)), _TASKS)
    order = np.tile(layer, layers)
    clock = np.full(workers, 1_000_000_000_000, np.int64)
    seq = np.ones(workers, np.int64)
    done = 0
    while done < tasks:
        n = min(per_block, tasks - done)
        for worker in range(workers):
            batch, clock[worker] = _block(rng, order, worker, workers, done, n, int(clock[worker]), int(seq[worker]))
            seq[worker] += n * per_task
            yield batch
        # A barrier of the data flow: nobody runs far ahead of the others.
        clock[:] = np.maximum(clock, int(np.median(clock)))
        done += n


def _block(
    rng: np.random.Generator, order: np.ndarray, worker: int, workers: int, first: int, n: int, t0: int, seq: int
) -> tuple[pa.RecordBatch, int]:
    """`n` tasks of one worker from its task number `first` on; returns them and the worker's clock after them."""
    number = (np.arange(first, first + n) * workers + (worker + rng.integers(0, workers, n)) % workers).astype(np.int64)
    iteration, index = np.divmod(number, len(order))
    kind = order[index]
    waited = rng.gamma(1.5, 400, n)
    ran = _NS[kind] * rng.normal(1, 0.03, n).clip(0.8, 1.5)
    steps = np.empty((n, 5))
    steps[:, 0] = 150
    steps[:, 1] = waited
    steps[:, 2] = 60 + rng.integers(0, 3, n) * 16
    steps[:, 3] = ran
    steps[:, 4] = 90 + rng.integers(0, 3, n) * 16
    t = t0 + (np.cumsum(steps.ravel()).reshape(n, 5) // TICK * TICK).astype(np.int64)
    aux = np.empty((n, 5), np.int64)
    wanted = _TASKS[kind]
    aux[:, 0] = rng.integers(0, wanted) << 32 | wanted
    aux[:, 1] = t[:, 0]
    aux[:, 2] = t[:, 2] - (waited / 2 // TICK * TICK).astype(np.int64)
    aux[:, 3] = t[:, 2]
    aux[:, 4] = rng.integers(0, wanted) << 32 | wanted
    attention = (kind == 2) | (kind == 3)
    request = np.where(attention, 1 + iteration // 40 * 4 + index % 16, REQUEST_SET_BIT | (1 + iteration // 40))
    rows = n * 5
    columns: dict[str, np.ndarray] = {
        "t": t.ravel(),
        "seq": np.arange(seq, seq + rows),
        "task": np.repeat(iteration << 32 | index, 5),
        "aux": aux.ravel(),
        "request": np.repeat(request, 5),
        "step": np.repeat(iteration, 5),
        "dep": np.stack([index // 8, index // 8, index * 0, index * 0, index // 8 + 32], 1).ravel(),
        "tile": np.repeat(index % 256 | (index // 7 % 64) << 8, 5),
        "task_class": np.repeat(kind + 1, 5),
        "worker": np.full(rows, worker),
        "sm": np.full(rows, worker),
        "peer": np.full(rows, PEER_NONE),
        "hook": np.tile(_HOOKS, n),
        "dep_class": np.tile([1, 1, 0, 0, 1], n),
        "by": np.full(rows, 1 << (RECORDER - 1)),
    }
    zero = np.zeros(rows, np.int64)
    arrays = [columns.get(c.name, zero).astype(RING_ROW.dtype[c.name]) for c in RING_ROW]
    return pa.record_batch(arrays, schema=RING_ROW.schema), int(t[-1, -1])
