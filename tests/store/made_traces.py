"""Rows for traces in tests: small, and every row recognisable again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.store import gather, parquet, seal, spool
from megascope.store.tables import COVERAGE, EVENTS, HOOK_BY_NAME, INTERVALS, NOW, REQUESTS, RING_ROW, TASK_CLASSES
from megascope.store.trace import Trace, TraceWriter

GIVEN: dict[str, Any] = {
    "engine": {
        "name": "made",
        "kind": "host",
        "pid": 1,
        "clock_kind": "virtual",
        "clock_tick_ns": 1,
        "epoch_ns": 1000,
        "policy": "wait",
        "exported_hooks": ["start"],
        "params": {"seed": 1},
    },
    "programs": [{"program": 1, "name": "recorder", "selection": "all", "source": "", "hash": ""}],
}

Key = tuple[int, int, int]


def ring_rows(first: int, count: int, *, workers: int = 3, hook: str = "start", rank: int = 0) -> pa.RecordBatch:
    """Rows number `first` … of a stream of rows that go round the workers; `task` is the row's number."""
    number = np.arange(first, first + count)
    columns = {
        "t": 1000 + 32 * number,
        "seq": number // workers + 1,
        "task": number,
        "aux": 1000 + 32 * number - 5,
        "worker": number % workers,
        "hook": np.full(count, HOOK_BY_NAME[hook].id),
        "by": np.ones(count),
        "rank": np.full(count, rank),
    }
    zero = np.zeros(count)
    return pa.record_batch(
        [columns.get(c.name, zero).astype(RING_ROW.dtype[c.name]) for c in RING_ROW], schema=RING_ROW.schema
    )


def summaries(rows: int) -> dict[str, pa.RecordBatch]:
    """Coverage, intervals and now of a recording of `rows` rows of `ring_rows` without loss."""
    where = {"rank": 0, "worker": None, "workers": 3, "epoch": 0, "epochs": 1, "t_begin": 0, "t_end": 10**9}
    interval = where | {"seq_from": None, "seq_to": None, "seqs": rows, "dequeued": rows, "lost": 0, "unclaimed": 0}
    cover = where | {"program": 1, "hook": 3, "eligible": rows, "observed": rows, "throttled": 0, "lost": 0}
    cover |= {"faulted": 0, "emitted": rows, "written": rows, "ring_lost": 0, "emit_throttled": 0}
    now = {"rank": 0, "worker": 0, "waiting": False, "fired": rows, "heartbeat": 5}
    return {
        "intervals": pa.RecordBatch.from_pylist([interval | {"closed": True}], schema=INTERVALS.schema),
        "coverage": pa.RecordBatch.from_pylist([cover | {"closed": True}], schema=COVERAGE.schema),
        "now": pa.RecordBatch.from_pylist([now], schema=NOW.schema),
    }


def request(number: int, slot: int) -> pa.RecordBatch:
    row = {"request": number, "slot": slot, "external_id": "é", "model": "m", "tenant": "t"}
    row |= {"arrival": 1, "prompt_tokens": 2, "max_tokens": 3}
    return pa.RecordBatch.from_pylist([row], schema=REQUESTS.schema)


def task_classes() -> pa.Table:
    row = {"id": 1, "name": "norm", "operator": "norm", "layer": 0, "device_function": "", "tensor_region": ""}
    return pa.Table.from_pylist([row | {"expected_dep_classes": [1, 2]}], schema=TASK_CLASSES.schema)


def record(path: Path, rows: int, *, batch: int = 100, finish: bool = True, **options: Any) -> TraceWriter:
    """A recording of `rows` rows with summaries, two requests and a loss that costs no rows."""
    w = TraceWriter.create(path, GIVEN, {"task_classes": task_classes()}, **options)
    for first in range(0, rows, batch):
        w.append("events", ring_rows(first, min(batch, rows - first)))
    for stream, summary in summaries(rows).items():
        w.append(stream, summary)
    w.upsert("requests", request(1, 1))
    w.upsert("requests", request(2, 2))
    w.upsert("requests", request(1, 7))
    w.lose("engine_stalled", 1, monitor=0, t_begin=5, t_end=6)
    w.flush()
    if finish:
        w.finish("the engine ended", t=10**9)
    return w


def read_part(path: Path) -> pa.Table:
    """The rows of a part of a few hundred rows, for which no threads are worth starting."""
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False).replace_schema_metadata(None)


def all_events(trace: Trace) -> pa.Table:
    """Sealed and spooled events together, as a reader sees them."""
    parts = [read_part(p.path) for p in trace.verified("events")]
    return pa.concat_tables([EVENTS.schema.empty_table(), *parts, trace.tail("events")])


def all_of(trace: Trace, name: str) -> pa.Table:
    """Sealed rows of a derived table and those that are derived while reading, as a reader sees them."""
    parts = [read_part(p.path) for p in trace.verified(name)]
    return pa.concat_tables([parquet.BY_NAME[name].schema.empty_table(), *parts, trace.tail(name)])


def started(trace: Trace) -> list[tuple[int, int]]:
    """(task, start) of all tasks of a trace of `ring_rows`, in order."""
    tasks = all_of(trace, "tasks")
    return sorted(zip(tasks["task"].to_pylist(), tasks["start"].to_pylist(), strict=True))


def expected_starts(rows: int) -> list[tuple[int, int]]:
    return [(n, 1000 + 32 * n) for n in range(rows)]


def keys(events: pa.Table) -> Counter[Key]:
    return Counter(zip(*(events[c].to_pylist() for c in ("rank", "worker", "seq")), strict=True))


def expected_keys(rows: int, workers: int = 3) -> Counter[Key]:
    return Counter((0, n % workers, n // workers + 1) for n in range(rows))


def truth(rows: int) -> pa.Table:
    """The stored events of `ring_rows(0, rows)`."""
    return parquet.stored_table(EVENTS, [ring_rows(0, rows)])


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spool files of 200 rows and parts of about 400, so that a few thousand rows make many of both."""
    monkeypatch.setattr(gather, "BATCH_ROWS", 50)
    monkeypatch.setattr(spool, "ROTATE_ROWS", 200)
    monkeypatch.setattr(seal, "PART_ROWS", 400)
    monkeypatch.setattr(seal, "_PART_MOST", 500)
