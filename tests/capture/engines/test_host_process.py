"""The host engine as a process on a segment: what it publishes, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from host_runs import SHAPES, SMALL, shape, spec_of

from megascope.capture.engines.host import engine_command, parse_spec
from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import T_ZERO, HostEngine
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.reader import SegmentReader, Truncated
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.segment.told import HostRingReader
from megascope.capture.segment.words import Control, Cursor, State, Summary
from megascope.capture.segment.writer import SegmentWriter
from megascope.store.errors import Exit, Refused, Usage
from megascope.store.tables import EVENT_ROW

ENOUGH_S = 60


class Drain:
    """A drainer of a segment that another process writes."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.segment = self._open(path)
        self.rings = RingReader(self.segment)
        self.summaries = SummaryReader(self.segment)
        self.host = HostRingReader(self.segment)
        self.rows: list[pa.RecordBatch] = []
        self.records: list[np.ndarray] = []
        self.told: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.losses: list[Any] = []

    def _open(self, path: Path) -> SegmentReader:
        end = time.monotonic() + ENOUGH_S
        while True:
            try:
                return SegmentReader.open(path, write=True)
            except Exception:
                assert self.process.poll() is None, self.process.communicate()[1]
                assert time.monotonic() < end
                time.sleep(0.01)

    def once(self) -> int:
        batch = self.rings.take()
        records, lost = self.summaries.take()
        told, missed = self.host.take()
        self.rows.append(batch.rows)
        self.records.append(records)
        self.losses += batch.losses + lost + missed
        for table, rows in told.items():
            self.told[table] += rows
        return batch.rows.num_rows + len(records)

    def to_the_end(self) -> None:
        end = time.monotonic() + ENOUGH_S
        while True:
            over = self.process.poll() is not None
            if not self.once():
                if over:
                    return
                time.sleep(0.001)
            assert time.monotonic() < end

    def events(self) -> np.ndarray:
        table = pa.Table.from_batches(self.rows)
        out = np.empty(table.num_rows, EVENT_ROW.dtype)
        for name in EVENT_ROW.names:
            out[name] = table[name].to_numpy()
        return out[np.lexsort((out["seq"], out["worker"]))]


Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts engines, and leaves none behind."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, text: str, truth: Path | None = None) -> subprocess.Popen[str]:
        command = engine_command(path, text, truth)
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["dynamic-2-ranks", "static"])
def test_a_drained_segment_has_the_very_events_of_a_run_in_memory(spawn: Spawn, tmp_path: Path, name: str) -> None:
    spec = spec_of(SHAPES[name])
    own = {k: v for k, v in spec.params().items() if k in SHAPES[name]}
    text = ",".join(f"{k}={v}" for k, v in own.items()) + ",ring_mb=0.25"
    process = spawn(tmp_path / "s", text)
    drain = Drain(tmp_path / "s", process)
    drain.to_the_end()
    out, err = process.communicate()
    assert process.returncode == 0, err
    run = shape(name)
    assert drain.events().tobytes() == run.events.tobytes()
    assert not drain.losses
    assert {k: sorted(map(str, v)) for k, v in drain.told.items()} == {
        k: sorted(map(str, v)) for k, v in run.sink.told.items()
    }
    said = json.loads(out)
    assert said["fired"] == said["written"] == run.result.fired
    assert said["t"] == run.result.t
    assert drain.segment.status().state == State.ENDED
    records = np.concatenate(drain.records)
    assert np.array_equal(records[:, 1:], run.sink.records[:, 1:]) or spec.model.ranks > 1
    assert records[:, Summary.ELIGIBLE].sum() == run.sink.records[:, Summary.ELIGIBLE].sum()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "stop"])
def test_it_ends_in_order_when_it_is_told_to(spawn: Spawn, tmp_path: Path, how: signal.Signals | str) -> None:
    process = spawn(tmp_path / "s", SMALL + ",steps=0,epoch_ms=5")
    drain = Drain(tmp_path / "s", process)
    while sum(b.num_rows for b in drain.rows) < 50_000:
        drain.once()
    if isinstance(how, str):
        drain.segment.poke(drain.segment.layout.control_offset + Control.STOP, b"\1")
    else:
        process.send_signal(how)
    drain.to_the_end()
    out, err = process.communicate()
    assert process.returncode == (130 if how == signal.SIGINT else 0), err
    assert drain.segment.status().state == State.ENDED
    said, events = json.loads(out), drain.events()
    assert said["written"] == said["fired"] == len(events)
    records = np.concatenate(drain.records)
    intervals = records[records[:, Summary.WHAT] & 0xFF == 1]
    assert (intervals[:, Summary.SEQ_TO] - intervals[:, Summary.SEQ_FROM]).sum() == len(events)
    open_now = {(r[0], r[2]) for r in drain.told["step_requests"] if r[1] == -1}
    closed = {(r[0], r[2]) for r in drain.told["step_requests"] if r[1] >= 0}
    assert open_now == closed


def test_it_waits_for_a_drainer_and_gives_up_only_when_stopped(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(tmp_path / "s", SMALL + ",steps=500,ring_mb=0.25")
    drain = Drain(tmp_path / "s", process)
    first = drain.segment.status()
    end = time.monotonic() + ENOUGH_S
    while True:
        time.sleep(0.2)
        before, first = first, drain.segment.status()
        if before.t_now == first.t_now and first.step > 0:
            break
        assert time.monotonic() < end
    while (second := drain.segment.status()).heartbeat_ns == first.heartbeat_ns:
        assert time.monotonic() < end
    assert second.t_now == first.t_now, "virtual time stands while the ring is full"
    assert process.poll() is None
    process.terminate()
    out, _ = process.communicate(timeout=ENOUGH_S)
    said = json.loads(out)
    assert said["ring_lost"] > 0
    assert said["dequeued"] == said["fired"] == said["written"] + said["ring_lost"]


def test_virtual_time_does_not_outrun_its_pace(spawn: Spawn, tmp_path: Path) -> None:
    begun = time.monotonic()
    process = spawn(tmp_path / "s", SMALL + ",steps=0,pace=0.05")
    drain = Drain(tmp_path / "s", process)
    reached = 0
    while reached < 20_000_000:
        drain.once()
        reached = drain.segment.status().t_now
        assert reached < T_ZERO + (time.monotonic() - begun) * 1e9 * 0.05
    process.terminate()
    drain.to_the_end()
    process.communicate()


def test_a_mask_is_latched_and_cuts_the_interval(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(tmp_path / "s", SMALL + ",steps=0,record=0,policy=drop")
    drain = Drain(tmp_path / "s", process)
    segment, at = drain.segment, drain.segment.layout.control_offset

    def ask(mask: int, commit: int) -> None:
        segment.poke(at + Control.MASK, mask.to_bytes(8, "little"))
        segment.poke(at + Control.COMMIT, bytes([commit]))

    time.sleep(0.1)
    assert not drain.once(), "nothing is recorded before it is asked for"
    ask(1 << 4, 1)
    while sum(b.num_rows for b in drain.rows) < 1000:
        drain.once()
    ask(1 << 4 | 1 << 3, 2)
    while not any(3 in set(b["hook"].to_pylist()) for b in drain.rows[-3:]):
        drain.once()
    process.terminate()
    drain.to_the_end()
    process.communicate()
    events, records = drain.events(), np.concatenate(drain.records)
    assert set(events["hook"]) == {3, 4}
    intervals = records[records[:, Summary.WHAT] & 0xFF == 1]
    assert (intervals[:, Summary.SEQ_TO] - intervals[:, Summary.SEQ_FROM]).sum() == len(events)
    coverage = records[records[:, Summary.WHAT] & 0xFF == 2]
    hooks = coverage[:, Summary.WHAT] >> 8 & 0xFF
    first_start = coverage[hooks == 3][:, Summary.T_BEGIN].min()
    assert (coverage[hooks == 4][:, Summary.T_END].min()) <= first_start


def test_truth_goes_to_the_caller_alone(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(tmp_path / "s", SMALL + ",steps=5,delay=l01.attn:2@1-3", tmp_path / "truth.json")
    drain = Drain(tmp_path / "s", process)
    drain.to_the_end()
    out, _ = process.communicate()
    (one,) = json.loads((tmp_path / "truth.json").read_text())
    assert one["fault"] == {"kind": "delay", "target": "l01.attn", "strength": 2.0, "first": 1, "last": 3}
    assert one["intervals"][0][:2] == [1, 3]
    assert "delay" not in out + json.dumps(drain.segment.engine)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layrs=3", "unknown key layrs: the host engine has none of that name; did you mean layers?"),
        ("layers=x", "cannot read layers=x: it is no whole number; give one"),
        ("layers", "cannot read layers: layers has no value; write layers=4"),
        ("layers=1,layers=2", "given twice"),
        ("schedule=both", "schedule=both; choose one of dynamic, static"),
        ("workers=0", "workers=0 is outside 1 to 4096"),
        ("pace=nan", "pace=nan is outside"),
        ("ranks=3", "cannot be shared by ranks=3"),
        ("delay=l01.atn:2", "did you mean l01.attn?"),
        ("skew=0:1", "a dense model has no routing"),
    ],
)
def test_bad_specs_are_one_line_and_a_usage_error(
    tmp_path: Path, text: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from megascope.capture.engines.host.__main__ import main

    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    try:
        code = main(["--segment", str(tmp_path / "s"), text])
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(number, handler)
    out, err = capfd.readouterr()
    assert code == 2
    assert not out
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_spec_is_checked_before_a_process_is_made_of_it(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="did you mean steps"):
        engine_command(tmp_path / "s", "step=3")


def test_params_say_everything_but_the_faults() -> None:
    spec = parse_spec("layers=2,seed=7,delay=l01.attn:2")
    assert spec.params()["layers"] == 2
    assert spec.params()["seed"] == 7
    assert not any("delay" in f"{k}{v}" for k, v in spec.params().items())
    json.dumps(spec.params())


def test_a_file_that_exists_is_left_alone(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    process = spawn(tmp_path / "s", SMALL)
    _, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 1
    assert "it exists" in err
    assert (tmp_path / "s").read_text() == "mine"
    with pytest.raises(Refused):
        SegmentReader.open(tmp_path / "s")


def test_a_recorder_that_asks_before_the_engine_first_looks_is_heard(tmp_path: Path) -> None:
    engine = HostEngine(spec_of(SMALL + ",steps=2"))
    engine.load()
    path, end = tmp_path / "a.mseg", time.monotonic() + ENOUGH_S / 6
    about = {"kind": "host", "params": {}, "perturbation": {}}
    with (
        SegmentWriter.create(path, layout_of(engine.spec), side_tables=engine.tables(), engine=about) as writer,
        SegmentReader.open(path, write=True) as segment,
    ):
        Lease(segment).record(segment.layout.exported)
        result = engine.run(SegmentSink(writer), lambda: time.monotonic() > end, hold=True)
    assert result.steps == 2


@pytest.mark.parametrize("policy", ["wait", "drop", "overwrite"])
@pytest.mark.parametrize("left", [0, 0.02, 0.5])
def test_it_goes_on_when_somebody_cuts_its_segment_short(
    spawn: Spawn, tmp_path: Path, policy: str, left: float
) -> None:
    """Every step is computed; the drainer hears of the truncation, and the engine says so when it ends."""
    text = SMALL + f",steps=400,pace=0.02,ring_mb=0.25,policy={policy}"
    process = spawn(tmp_path / "s", text)
    drain = Drain(tmp_path / "s", process)
    while drain.segment.status().step < 20:
        drain.once()
    os.truncate(tmp_path / "s", int((tmp_path / "s").stat().st_size * left))
    with pytest.raises(Truncated):
        drain.segment.status()
    out, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == Exit.INCOMPLETE
    assert err.endswith("/s lost what was told: somebody cut the file short; the run went on unseen\n")
    assert err.count("\n") == 1
    assert json.loads(out)["steps"] == 400


def test_waiting_for_a_drainer_it_goes_on_when_its_segment_is_cut_short(spawn: Spawn, tmp_path: Path) -> None:
    """Its ring is full and nobody can make room any more."""
    process = spawn(tmp_path / "s", SMALL + ",steps=300,ring_mb=0.25")
    drain = Drain(tmp_path / "s", process)
    full = drain.segment.layout.monitors * drain.segment.layout.ring_rows
    while drain.segment.cursors()[:, Cursor.HEAD].sum() < full:
        time.sleep(0.01)
    time.sleep(0.1)
    step = drain.segment.status().step
    assert step < 299
    os.truncate(tmp_path / "s", 1 << 16)
    out, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == Exit.INCOMPLETE, err
    assert json.loads(out)["steps"] == 300
