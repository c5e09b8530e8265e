"""Engine-wide values reach the programs, with their epoch, and switch escalation on and off."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.capture import attaching
from megascope.capture.engines.host import engine_command
from megascope.capture.feedback import LEAST, Feedback, cells_of
from megascope.capture.programs import histogram
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Program
from megascope.capture.segment.map_ring import Span, encode, entries, records
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.session import Session
from megascope.store.check import check
from megascope.store.tables import RECORDER
from megascope.store.trace import Trace

SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128,workers=5"
HIST = Map("lat", MapKind.HIST, 4, histogram.VALUE_BYTES, 8, aggregate=True)


def program(*fed: str, cells: int = 1) -> Program:
    maps = [HIST, *(Map(n, MapKind.FEEDBACK, 4, 16, cells, shared=True, read_only=True) for n in fed)]
    return Program("p", (), (), tuple(maps))


def test_names_say_what_a_map_is_fed() -> None:
    got = {
        c.map: (c.source, c.quantile, c.keyed) for c in cells_of(program("lat__p99", "lat__count", "lat__p999_by_key"))
    }
    assert got == {
        "lat__p99": ("lat", 0.99, False),
        "lat__count": ("lat", None, False),
        "lat__p999_by_key": ("lat", 0.999, True),
    }
    assert cells_of(program("something")) == []


class Cursor:
    """A segment of which feedback needs no more than the epoch that monitors are in."""

    def __init__(self) -> None:
        self.words = np.zeros((1, 32), np.uint64)

    def cursors(self) -> np.ndarray:
        return self.words


def export(epoch: int, values: list[int], key: int = 0) -> tuple[Span, Map, object]:
    words = np.zeros(histogram.WORDS, np.uint64)
    for v in values:
        histogram.add(words, v)
    span = Span(7, 0, 0, None, 1, epoch, 1, epoch * 10**9, (epoch + 1) * 10**9, (0, 0, 0, 0, 0))
    keys = np.array([key], "<u4").view(np.uint8).reshape(1, 4)
    (data,) = encode(span, HIST, keys, words.view(np.uint8).reshape(1, -1), 1 << 20)
    ((got, n, body),) = records(data)
    return got, HIST, entries(HIST, n, body)


def fed_after(feedback: Feedback, closed: int) -> dict[tuple[int, int, int], tuple[int, int]]:
    feedback.segment.words[:, 3] = closed  # type: ignore[attr-defined]
    feedback._commit = 1
    feedback.segment.words[:, 9] = 0  # type: ignore[attr-defined]
    feedback.step()
    out = dict(feedback._waiting)
    feedback._waiting.clear()
    return out


def test_closed_epochs_are_merged_over_the_window() -> None:
    feedback = Feedback(Cursor())  # type: ignore[arg-type]
    feedback.follow(7, program("lat__p99", "lat__count"))
    feedback.add(*export(3, list(range(600))))  # type: ignore[arg-type]
    assert fed_after(feedback, 3) == {}, "the epoch has not closed in every monitor"
    assert fed_after(feedback, 4) == {(7, 2, 0): (600, 4)}, "a quantile of fewer than 1,000 is not fed"
    feedback.add(*export(4, list(range(600, LEAST))))  # type: ignore[arg-type]
    got = fed_after(feedback, 5)
    assert got[7, 2, 0] == (LEAST, 5)
    value, stamp = got[7, 1, 0]
    assert stamp == 5
    assert abs(value - 989) <= 989 / 32 + 1
    # Ten seconds later they have left the window.
    feedback.add(*export(14, [5]))  # type: ignore[arg-type]
    assert fed_after(feedback, 15) == {(7, 2, 0): (1, 15)}


def test_cells_by_key() -> None:
    feedback = Feedback(Cursor())  # type: ignore[arg-type]
    feedback.follow(7, program("lat__count_by_key", cells=4))
    for key in (1, 3, 9):
        feedback.add(*export(3, [1] * (key + 1), key))  # type: ignore[arg-type]
    assert fed_after(feedback, 4) == {(7, 1, 1): (2, 4), (7, 1, 3): (4, 4)}


@contextmanager
def process(path: Path, spec: str) -> Iterator[subprocess.Popen[bytes]]:
    """A host engine in a process of its own."""
    command = engine_command(path, f"{SMALL},{spec}")
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not path.exists() or path.read_bytes()[:1] in (b"", b"\0"):
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield run
    finally:
        run.kill()
        run.wait()


def rows_of(trace: Trace, stream: str) -> pa.Table:
    parts = [pq.read_table(p.path) for p in trace.verified(stream)]
    return pa.concat_tables([*parts, trace.tail(stream)]).replace_schema_metadata(None)


def test_rows_only_while_the_p99_is_over_the_line(tmp_path: Path) -> None:
    """Tasks take ten times as long in steps 1,000 to 1,800: rows are exported from then on, and later no more."""
    text = "complete { @lat = hist(exec_ns); } complete /p99(@lat, 20ms) > 20000/ { emit(); }"
    query = attaching.load(text, {}, query=True, name="slo")
    (cell,) = query.feedback
    assert (cell.quantile, cell.window_ns) == (0.99, 20_000_000)
    path = tmp_path / "a.mseg"
    # A virtual ms takes 20 real ones, so that the drainer's passes are a small part of the window.
    with process(path, "steps=4000,epoch_ms=2,pace=0.05,record=0,delay=*:10@1000-1800") as run:
        with SegmentReader.open(path, write=True) as segment:
            session = Session(segment, tmp_path / "o.mscope")
            session.attach(query)
            assert session.run(stopped=lambda: False) == "ended"
            session.release()
        run.wait(30)
    assert check(tmp_path / "o.mscope").clean
    with Trace.open(tmp_path / "o.mscope") as trace:
        events = rows_of(trace, "events")
    t, by, step = (events[c].to_numpy() for c in ("t", "by", "step"))
    escalated = by >> 1 & 1 == 1
    assert escalated.any()
    begin, end = t[step == 1000].min(), t[step == 1800].max()
    assert t[escalated].min() > begin
    assert escalated[(t > begin + 10_000_000) & (t < end) & (events["hook"].to_numpy() == 4)].mean() > 0.5
    last = t[escalated].max()
    assert end < last < t.max() - 20_000_000


@pytest.mark.parametrize("who", ["capture", "engine"])
def test_after_a_kill_the_trace_is_readable(tmp_path: Path, who: str) -> None:
    path, out = tmp_path / "a.mseg", tmp_path / "o.mscope"
    query = "complete { @lat[task_class] = hist(since_ns); emit(); }"
    with process(path, "steps=0,epoch_ms=2,pace=0.05,record=0") as run:
        command = [
            sys.executable,
            "-m",
            "megascope",
            "capture",
            str(path),
            "-o",
            str(out),
            "--program",
            query,
            "--quiet",
        ]
        capture = subprocess.Popen(command, stderr=subprocess.PIPE)
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until
            assert capture.poll() is None, capture.stderr and capture.stderr.read()
            time.sleep(0.1)
            if not (out / "manifest.json").exists():
                continue
            with Trace.open(out) as trace:
                recorded = RECORDER in trace.tail("coverage")["program"].to_pylist()
                if recorded and "maps.query_lat" in trace.maps and trace.tail("maps.query_lat").num_rows > 30:
                    break
        (capture if who == "capture" else run).kill()
        capture.wait(60)
    with Trace.open(out) as trace:
        assert trace.state == ("unsealed" if who == "capture" else "sealed")
        lat, coverage = rows_of(trace, "maps.query_lat"), rows_of(trace, "coverage").to_pylist()
        assert lat.num_rows > 30
        still_open = [r for r in coverage if not r["closed"]]
        assert {r["program"] for r in still_open} >= (set() if who == "capture" else {2})
        # Of the recorder's intervals those are open of which rows had come.
        intervals = rows_of(trace, "intervals").to_pylist()
        assert (RECORDER in {r["program"] for r in still_open}) == any(not r["closed"] for r in intervals)
    report = check(out)
    assert not [f for f in report.findings if f.severity == "damaged" and f.file != "loss"]
