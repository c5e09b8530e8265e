"""Whoever dies while the kernel runs: the engine, the recorder. What was published is kept, and the next one works."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Control, State
from megascope.store.check import check
from megascope.store.trace import Trace

SIMULATED = Path(__file__).resolve().parents[1] / "simt" / "engine.py"


@contextmanager
def process(cuda: Any, segment: Path, spec: str) -> Iterator[subprocess.Popen[str]]:
    """The engine as a process of its own, in its fifth step or later."""
    start = [str(SIMULATED)] if cuda.simulated else ["-m", "megascope.capture.engines.cuda"]
    command = [sys.executable, *start, "--segment", str(segment), f"{cuda.small},{spec}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as engine:
        try:
            deadline = time.monotonic() + 120
            while not segment.exists() or segment.stat().st_size == 0 or step_of(segment) < 5:
                assert engine.poll() is None, engine.stderr and engine.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield engine
        finally:
            engine.kill()


def step_of(segment: Path) -> int:
    try:
        with SegmentReader.open(segment) as reader:
            return int(reader.status().step)
    except Exception:  # it is being made
        return 0


def recorder(segment: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "megascope",
        "capture",
        str(segment),
        "-o",
        str(out),
        "--quiet",
        "--program",
        "none",
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def rows_come(out: Path, segment: Path) -> None:
    """Until the recorder has taken rows."""
    deadline = time.monotonic() + 60
    with SegmentReader.open(segment) as reader:
        lay = reader.layout
        while not any(reader.read(lay.tails_offset, lay.monitors)) and not list(out.glob("spool/*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    time.sleep(0.5)


def kept(out: Path) -> int:
    """Rows of a trace that is sound, all of them accounted for."""
    report = check(out)
    assert not [f for f in report.findings if f.severity == "damaged"], report.findings
    with Trace.open(out) as trace:
        rows = sum(p.rows for p in trace.parts("events")) + trace.tail("events").num_rows
        intervals = [pq.read_table(p.path) for p in trace.parts("intervals")]
    for table in intervals:
        row = table.to_pydict()
        for begin, end, dequeued, lost, closed in zip(
            row["seq_from"], row["seq_to"], row["dequeued"], row["lost"], row["closed"], strict=True
        ):
            assert begin is None or not closed or end - begin == dequeued + lost
    return rows


@pytest.mark.heavy
def test_the_engine_is_killed(cuda: Any, segment_path: Path, tmp_path: Path) -> None:
    """The recorder seals what was published, says that the engine died, and another engine can start at once."""
    out = tmp_path / "a.mscope"
    spec = "steps=60000,seconds=60,ring_mb=64"
    with process(cuda, segment_path, spec) as engine, recorder(segment_path, out) as capture:
        rows_come(out, segment_path)
        engine.send_signal(signal.SIGKILL)
        _, said = capture.communicate(timeout=60)
        assert "Traceback" not in said
        assert capture.returncode in (0, 3, 4), said
    assert kept(out) > 0
    segment_path.unlink()
    with process(cuda, segment_path, spec) as engine:
        engine.send_signal(signal.SIGTERM)
        _, said = engine.communicate(timeout=60)
        assert engine.returncode == 0, said


@pytest.mark.heavy
def test_the_recorder_is_killed(cuda: Any, segment_path: Path, tmp_path: Path) -> None:
    """The engine goes on; a second recorder takes over; both traces are sound."""
    first, second = tmp_path / "a.mscope", tmp_path / "b.mscope"
    with process(cuda, segment_path, "steps=60000,seconds=100,ring_mb=64") as engine:
        with recorder(segment_path, first) as capture:
            rows_come(first, segment_path)
            capture.send_signal(signal.SIGKILL)
        assert engine.poll() is None
        step = step_of(segment_path)
        with recorder(segment_path, second) as capture:
            deadline = time.monotonic() + 60
            while not list(second.glob("spool/*")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            while step_of(segment_path) < step + 3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(1)
            with SegmentReader.open(segment_path, write=True) as segment:
                segment.poke(segment.layout.control_offset + Control.STOP, b"\1")
                _, said = engine.communicate(timeout=60)
                assert engine.returncode == 0, said
                assert segment.status().state == State.ENDED
            _, said = capture.communicate(timeout=60)
            assert capture.returncode == 0, said
    assert kept(first) > 0
    assert kept(second) > 0
