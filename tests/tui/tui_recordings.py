"""Recordings that the tests of `tui` browse: real ones of the host engine, small and the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from megascope.capture import session, target
from megascope.capture.segment.reader import SegmentReader
from megascope.store import tables
from megascope.store.trace import TraceWriter

SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128"
HOST = SMALL + ",ranks=2,workers=3,steps=30,epoch_ms=0.25"
LOSSY = HOST + ",lose=0.08"


def record(path: Path, spec: str, *, seal: bool = True) -> Path:
    """Record the host engine. seal False: as if the recorder had died after its last flush."""
    engine = target.start(f"demo:{spec}", [])
    try:
        engine.wait_for_segment(120.0, lambda: False, lambda _: None)
        with SegmentReader.open(engine.path, write=True) as segment:
            recording = session.Session(segment, path)
            if not seal:
                recording.writer.finish = lambda *_, **__: _die(recording.writer)  # type: ignore[method-assign]
            try:
                recording.run(stopped=lambda: False, stop_engine=True)
            finally:
                recording.release()
    finally:
        engine.end()
    return path


def _die(writer: TraceWriter) -> None:
    """Flush, and go."""
    writer.flush()
    writer.close()


def empty(path: Path) -> Path:
    """A finished recording of an engine that did nothing."""
    engine = {
        "name": "idle engine", "kind": "host", "clock_kind": "virtual", "clock_tick_ns": 1, "epoch_ns": 1000,
        "policy": "wait", "exported_hooks": ["start", "complete"], "params": {},
    }  # fmt: skip
    programs = [{"program": 1, "name": "recorder", "selection": "all", "source": "", "hash": ""}]
    given: dict[str, Any] = {"name": "nothing", "engine": engine, "programs": programs}
    workers = [{"worker": w, "monitor": 0, "sm": w, "role": "compute", "rank": 0} for w in range(2)]
    side = {"workers": pa.Table.from_pylist(workers, schema=tables.WORKERS.schema)}
    TraceWriter.create(path, given, side).finish("ended", t=0)
    return path
