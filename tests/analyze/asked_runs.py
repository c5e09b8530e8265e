"""Runs of the host engine in this process, as sealed traces: what is in them is known, and so is what was lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from megascope.capture.accounts import Accounts
from megascope.capture.engines.host import parse_spec
from megascope.capture.engines.host.engine import HostEngine, Result, exported_hooks
from megascope.capture.engines.host.sinks import MemorySink
from megascope.capture.segment.reader import SegmentReader
from megascope.store.tables import ENGINE_TABLES, HOOKS, RING_ROW
from megascope.store.trace import TraceWriter

SMALL = (
    "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128,workers=5,"
    "prompt_tokens=16,max_tokens=8,epoch_ms=0.2"
)
"""About 100 tasks a step on five workers; epochs are short, so that there are several."""
RECORDER = {"program": 1, "name": "recorder", "selection": "all", "source": "", "hash": ""}


def record(path: Path, spec_text: str, *, cut: int | None = None, rows_to: int | None = None, **how: Any) -> Result:
    """Run `spec_text` and write what its drainer would; `how` overrides keys of the manifest.

    cut, rows_to: as of a recorder that was killed when it had intervals up to the one and events before the other, ns.
    """
    spec = parse_spec(spec_text)
    engine, sink = HostEngine(spec), MemorySink()
    tables = engine.tables()
    result = engine.run(sink)
    exported = [h.name for h in HOOKS if exported_hooks(spec) >> h.id & 1]
    about = {
        "name": "host", "kind": "host", "clock_kind": "virtual", "clock_tick_ns": 1, "policy": "wait",
        "epoch_ns": int(spec.epoch_ms * 1e6), "exported_hooks": exported, "params": spec.params(),
    }  # fmt: skip
    given: dict[str, Any] = {"name": "host run", "engine": about, "clock": {"fits": []}, "programs": [RECORDER]}
    writer = TraceWriter.create(path, given | how, tables)
    rows = sink.events
    columns = [pa.array(rows[c.name] if c.name != "by" else [1] * len(rows), c.arrow) for c in RING_ROW]
    events = pa.record_batch(columns, schema=RING_ROW.schema)
    writer.append("events", events if rows_to is None else events.filter(pc.less(events["t"], rows_to)))
    workers = tables["workers"].sort_by("worker")
    of = {f"{name}_of": workers[name].to_numpy() for name in ("rank", "monitor")}
    segment = SimpleNamespace(layout=SimpleNamespace(workers=workers.num_rows), **of)
    intervals, coverage, losses = Accounts(cast(SegmentReader, segment)).book(sink.records)
    if cut is not None:
        intervals, coverage = (b.filter(pc.less_equal(b["t_end"], cut)) for b in (intervals, coverage))
    writer.append("intervals", intervals)
    writer.append("coverage", coverage)
    for loss in losses:
        writer.lose(loss.kind, loss.count, worker=loss.worker, t_begin=loss.t_begin, t_end=loss.t_end)
    for table in ENGINE_TABLES:
        if told := sink.told.get(table.name):
            by_column = zip(*told, strict=True)
            arrays = [pa.array(list(values), c.arrow) for values, c in zip(by_column, table, strict=True)]
            writer.upsert(table.name, pa.record_batch(arrays, schema=table.schema))
    if cut is not None:
        writer.flush()
        writer.close()
        return result
    writer.finish("ended", t=result.t)
    return result
