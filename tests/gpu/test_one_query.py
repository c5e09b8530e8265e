"""One query gives one table: on the device while it runs, in replay over the recording, and on the host engine."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from device_runs import kernel
from test_experts_and_ranks import TWO

from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.programs import standard
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.language import compile as compile_query
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.session import Session
from megascope.store.check import check
from megascope.store.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture" / "engines"))
import live_runs

QUERY = "complete { @n[class] = count(); @h[class] = hist(exec_ns); @w[worker] = max(exec_ns); }"
STEPS = 8
NO_KEY = {
    *("program", "worker", "workers", "epoch", "epochs", "t_begin", "t_end"),
    *("value", "count", "sum", "min", "max", "lower", "counts"),
    *("eligible", "observed", "throttled", "lost", "faulted", "refused"),
}


def programs() -> Any:
    return [
        (compile_query(QUERY, name="q").program, Limits()),
        *((standard.load(m.name), m.limits) for m in standard.MONITORS if m.name in ("latency", "waits")),
    ]


def on_the_device(cuda: Any, segment_path: Path, out: Path, spec: str) -> Path:
    """A recording with the programs attached from the first event to the last."""
    made = CudaEngine(kernel(cuda, spec), segment_path, hold=True)
    ends: list[str] = []
    run = threading.Thread(target=lambda: ends.append(made.run()), daemon=True)
    run.start()
    try:
        with SegmentReader.open(segment_path, write=True) as segment:
            session = Session(segment, out)
            try:
                for program, limits in programs():
                    session.attach(program, limits)
                assert made.counts()["steps"] == 0
                assert session.run(stopped=lambda: False) == "ended"
            finally:
                session.release()
    finally:
        made.kernel.host.ask_stop()
        made.kernel.host.go()
        run.join(120)
        made.close()
    assert ends == ["done"]
    return out


@pytest.mark.parametrize("model", ["", TWO], ids=["one-rank", "two-ranks"])
@pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])
def test_live_replay_and_host_engine(cuda: Any, segment_path: Path, tmp_path: Path, transport: str, model: str) -> None:
    spec = f"{model or 'ranks=1'},steps={STEPS},transport={transport},ring_mb=64,epoch_ms=50,map_kb=1024"
    spec += f",arena_mb={300 if cuda.simulated else 8000}"
    live = on_the_device(cuda, segment_path, tmp_path / "live.mscope", spec)
    assert not check(live).findings
    assert sum(live_runs.rows(live, "coverage")["lost"].to_pylist()) == 0, "the queues hold a small run"
    (tmp_path / "host").mkdir()
    again = live_runs.replay(live, tmp_path / "again.mscope", programs())
    assert whole(live) == whole(again), "to the bit"

    settings = kernel(cuda, spec).settings
    host = live_runs.record(tmp_path / "host", host_spec(settings), programs())
    assert columns(live) == columns(host)
    assert counts(live) == counts(host), "the same tasks of each class were done"
    assert sum(counts(live).values()) > 0


def host_spec(settings: Settings) -> str:
    """The same model under the same load."""
    load = ("occupancy", "prompt_tokens", "max_tokens", "chunk", "preempt", "cancel", "tenants")
    given = vars(settings.model) | {name: getattr(settings.load, name) for name in load}
    given |= {"steps": settings.steps, "seed": settings.seed, "workers": 3, "epoch_ms": 0.5}
    return ",".join(f"{name}={value}" for name, value in given.items())


def columns(path: Path) -> dict[str, Any]:
    with Trace.open(path) as trace:
        return {name: live_runs.rows_of(trace, name).schema for name in sorted(trace.maps)}


def whole(path: Path) -> dict[str, dict[tuple[int, ...], dict[str, Any]]]:
    """By map, rank and key: the value over all epochs, which end on a device when its monitors come to it."""
    out: dict[str, dict[tuple[int, ...], dict[str, Any]]] = {}
    with Trace.open(path) as trace:
        for name in sorted(trace.maps):
            merged = out.setdefault(name, {})
            for row in live_runs.rows_of(trace, name).to_pylist():
                assert not row["refused"]
                key = tuple(v for n, v in row.items() if n not in NO_KEY)
                into = merged.setdefault(key, {"value": 0, "count": 0, "sum": 0, "min": 1 << 64, "max": 0})
                for field in ("count", "sum"):
                    into[field] += row.get(field, 0)
                into["min"], into["max"] = min(into["min"], row.get("min", 0)), max(into["max"], row.get("max", 0))
                value = row.get("value", 0)
                into["value"] = max(into["value"], value) if name == "maps.q_w" else into["value"] + value
                for lower, n in zip(row.get("lower", ()), row.get("counts", ()), strict=True):
                    into[lower] = into.get(lower, 0) + n
    return out


def counts(path: Path) -> dict[str, int]:
    """Of each class by name: what the query counted, over all epochs."""
    with Trace.open(path) as trace:
        names = {r["id"]: r["name"] for r in trace.table("task_classes").to_pylist()}
        out: dict[str, int] = {}
        for row in live_runs.rows_of(trace, "maps.q_n").to_pylist():
            name = names[row["class"]]
            out[name] = out.get(name, 0) + row["value"]
    return out
