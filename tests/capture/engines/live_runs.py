"""Recordings of the host engine with programs attached from its first event on, and comparisons of traces."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from host_runs import spec_of

from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine, Result
from megascope.capture.engines.recorded.output import Output
from megascope.capture.engines.recorded.recording import Recording, rows_of
from megascope.capture.engines.recorded.replay import Replay
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.writer import SegmentWriter
from megascope.capture.session import Session
from megascope.store.tables import RECORDER
from megascope.store.trace import Trace

Programs = Sequence[tuple[Program, Limits]]
COUNTS = ("eligible", "observed", "throttled", "lost", "faulted", "emitted", "written", "ring_lost", "emit_throttled")


def record(folder: Path, spec: str, programs: Programs, *, raw: bool = True, max_bytes: int | None = None) -> Path:
    """Record a run of the host engine, without a limit on exports, into folder/live.mscope."""
    engine = HostEngine(spec_of(f"{spec},telemetry=0,map_kb=8192"))
    engine.load()
    path, out, done = folder / "live.mseg", folder / "live.mscope", list[Result | BaseException]()
    about = {"kind": "host", "params": {}, "perturbation": {}}
    with SegmentWriter.create(path, layout_of(engine.spec), side_tables=engine.tables(), engine=about) as writer:

        def run() -> None:
            try:
                result = engine.run(SegmentSink(writer), hold=True)
                writer.end(result.t, result.steps - 1)
                done.append(result)
            except BaseException as error:
                writer.end(engine.t, max(engine.step, 0), failed=True)
                done.append(error)

        thread = threading.Thread(target=run)
        with SegmentReader.open(path, write=True) as segment:
            session = Session(segment, out, raw=raw, max_bytes=max_bytes)
            thread.start()
            try:
                for program, limits in programs:
                    session.attach(program, limits)
                reason = session.run(stopped=lambda: False)
            finally:
                session.release()
                thread.join()
    path.unlink()
    assert isinstance(done[0], Result), done
    assert reason == "ended"
    return out


def replay(trace: Path, out: Path, programs: Programs) -> Path:
    """Replay programs over a trace."""
    with Trace.open(trace) as opened:
        recording = Recording(opened)
        run = Replay(recording, programs)
        output = Output(recording, out, run.programs, run.table())
        try:
            run.run(output)
        except BaseException:
            output.abandon()
            raise
        output.finish(run.end)
    return out


def rows(path: Path, stream: str) -> pa.Table:
    with Trace.open(path) as trace:
        return rows_of(trace, stream)


def maps(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every map's rows, in an order of their own; columns as they are declared."""
    with Trace.open(path) as trace:
        return {n: sorted(map(_comparable, rows_of(trace, n).to_pylist())) for n in sorted(trace.maps)}


def _comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(-1 if v is None else tuple(v) if isinstance(v, list) else v for v in row.values())


def coverage(path: Path, programs: Iterable[int]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Counts by program, rank, hook, epoch and worker (-1: merged), however many rows told of them."""
    out: dict[tuple[int, ...], list[int]] = {}
    for row in rows(path, "coverage").to_pylist():
        if row["program"] in set(programs):
            worker = -1 if row["worker"] is None else row["worker"]
            key = (row["program"], row["rank"], row["hook"], row["epoch"], row["epochs"], worker, row["t_end"])
            total = out.setdefault(key, [0] * (1 + len(COUNTS)))
            for i, name in enumerate(("workers", *COUNTS)):
                total[i] += row[name]
    return {k: tuple(v) for k, v in out.items()}


def emitted(path: Path) -> list[tuple[Any, ...]]:
    """Every event row that some program emitted, with by whom, the recorder left out of account."""
    found = rows(path, "events").to_pylist()
    return sorted(_comparable(row | {"by": row["by"] & ~1}) for row in found if row["by"] & ~1)


def ids(programs: Programs) -> range:
    """Ids of programs that were attached before all others."""
    return range(RECORDER + 1, RECORDER + 1 + len(programs))
