"""Small traces that the tests of `analyze` question, written by the real TraceWriter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megascope.store import tables
from megascope.store.trace import TraceWriter

EPOCH_NS = 1000
RECORDER_PROGRAM = {"program": 1, "name": "recorder", "selection": "all", "source": "", "hash": ""}
FITS = [
    {"device_ns": i * 1000, "host_ns": 1_700_000_000_000_000_000 + i * 1000 + i % 2 * 4, "error_ns": 2}
    for i in range(9)
]


def ring_rows(n: int, **columns: Any) -> pa.RecordBatch:
    """`n` ring rows: t = 0, 10, …, hooks 1 to 12 in turn, two workers, three classes; `columns` override."""
    i = np.arange(n)
    values: dict[str, Any] = {
        "t": i * 10,
        "seq": i // 2 + 1,
        "task": (i // 12) << 32 | i % 12,
        "request": i % 3,
        "step": i // 12,
        "dep": i % 2,
        "task_class": i % 3,
        "worker": i % 2,
        "sm": i % 2,
        "peer": tables.PEER_NONE,
        "hook": i % 12 + 1,
        "by": 1,
        **columns,
    }
    since = np.isin(np.broadcast_to(values["hook"], n), [h.id for h in tables.HOOKS if h.since])
    values.setdefault("aux", np.where(since, np.maximum(values["t"] - 5, 1), 3))
    arrays = [
        pa.array(np.broadcast_to(values.get(c.name, 0), n).astype(tables.RING_ROW.dtype[c.name]))
        for c in tables.RING_ROW
    ]
    return pa.record_batch(arrays, schema=tables.RING_ROW.schema)


def rows(table: tables.Table, *given: dict[str, Any]) -> pa.RecordBatch:
    """Rows of a declared table; what is not given is zero, empty or null."""
    zero: dict[str, Any] = {"str": "", "bool": False, "u8s": [], "i64s": [], "strs": []}
    blank = {c.name: None if c.nullable else zero.get(c.type, 0) for c in table}
    return pa.RecordBatch.from_pylist([{**blank, **row} for row in given], schema=table.schema)


def flow(eligible: int, *, lost: int = 0, ring_lost: int = 0, closed: bool = True, **other: int) -> dict[str, Any]:
    """A row of coverage in which everything that was not lost was written."""
    observed = eligible - lost
    return {
        "program": 1, "hook": 3, "workers": 2, "epochs": 1, "t_end": EPOCH_NS,
        "eligible": eligible, "observed": observed, "lost": lost, "emitted": observed,
        "written": observed - ring_lost, "ring_lost": ring_lost, "closed": closed,
        **other,
    }  # fmt: skip


def begin(
    path: Path, programs: Sequence[dict[str, Any]] = (RECORDER_PROGRAM,), fits: Sequence[dict[str, int]] = ()
) -> TraceWriter:
    """A recording with its side tables and no rows yet."""
    engine = {
        "name": "test engine", "kind": "host", "clock_kind": "virtual", "clock_tick_ns": 1, "epoch_ns": EPOCH_NS,
        "policy": "wait", "exported_hooks": [h.name for h in tables.HOOKS[:12]], "params": {},
    }  # fmt: skip
    classes = rows(
        tables.TASK_CLASSES,
        *({"id": i, "name": name, "operator": name, "layer": i} for i, name in enumerate(("norm", "qkv", "attn_qk"))),
    )
    dependencies = rows(tables.DEPENDENCIES, {"id": 1, "name": "kv[0]", "event_tensor": "kv", "kind": 1, "wanted": 4})
    workers = rows(tables.WORKERS, *({"worker": w, "sm": w, "role": "compute"} for w in range(2)))
    given = {"task_classes": classes, "dependencies": dependencies, "workers": workers}
    return TraceWriter.create(
        path,
        {"name": "night run", "engine": engine, "clock": {"fits": list(fits)}, "programs": list(programs)},
        {name: pa.Table.from_batches([batch]) for name, batch in given.items()},
    )


def fill(writer: TraceWriter, n: int = 240) -> None:
    """`n` events, everything that a recording says about them, and 20 lost in a queue."""
    end = max(n * 10, EPOCH_NS)
    writer.append("events", ring_rows(n))
    writer.append("coverage", rows(tables.COVERAGE, flow(n + 20, lost=20, t_end=end)))
    writer.append(
        "intervals",
        rows(
            tables.INTERVALS,
            {"workers": 2, "epochs": 1, "t_end": end, "seqs": n + 20, "dequeued": n, "lost": 20, "closed": True},
        ),
    )
    writer.append(
        "now",
        rows(
            tables.NOW,
            {"worker": 0, "waiting": True, "t": 100, "dep": 1, "seen": 1, "wanted": 4, "task": 7, "heartbeat": 450},
            {"worker": 1, "heartbeat": 460},
        ),
    )
    writer.upsert("requests", rows(tables.REQUESTS, *({"request": r, "external_id": f"r{r}"} for r in (1, 2))))
    writer.upsert("step_requests", rows(tables.STEP_REQUESTS, *({"to_step": -1, "request": r} for r in (1, 2))))
    writer.lose("queue_full", 20, worker=0, hook=3)
    writer.flush()


def sealed(path: Path, n: int = 240, **how: Any) -> Path:
    """A finished recording."""
    writer = begin(path, **how)
    fill(writer, n)
    writer.finish("engine ended", t=n * 10)
    return path


def unsealed(path: Path, n: int = 240, **how: Any) -> Path:
    """A recording whose recorder went away after it had flushed."""
    writer = begin(path, **how)
    fill(writer, n)
    writer.close()
    return path


GIVEN = ("task_classes", "dependencies", "workers")
"""Side tables that even an empty trace has."""


def empty(path: Path) -> Path:
    """A finished recording of nothing."""
    begin(path).finish("engine ended")
    return path
