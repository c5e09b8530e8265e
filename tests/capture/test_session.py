"""The capture loop: whole recordings, and what is left when capture or engine is killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doomed import record_and_acknowledge
from scripted import ScriptedEngine, pour

from megascope.__main__ import run
from megascope.capture import attaching, wanted
from megascope.capture import session as session_module
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.segment import lease
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.mailbox import Unanswered
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Policy
from megascope.capture.session import Session
from megascope.store.check import check, repair
from megascope.store.errors import MegascopeError, Refused
from megascope.store.trace import Trace


def rows_of(trace: Trace, stream: str = "events") -> pa.Table:
    """All rows of a stream, sealed and not."""
    parts = [pq.read_table(p.path) for p in trace.parts(stream)]
    tail = trace.tail(stream)
    return pa.concat_tables([*(p.cast(tail.schema) for p in parts), tail])


def record(engine: ScriptedEngine, out: Path, script: threading.Thread | None = None, **options: object) -> str:
    with SegmentReader.open(engine.writer.path, write=True) as segment:
        session = Session(segment, out)
        if script:
            script.start()
        try:
            return session.run(**({"stopped": lambda: False} | options))  # type: ignore[arg-type]
        finally:
            session.release()
            if script:
                script.join()


def test_an_orderly_run_is_whole(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0, 0, 1], block_rows=512, blocks=8, summary_rows=256)

    def script() -> None:
        for i in range(12_000):
            engine.fire(i % 3, [3, 4, 7][i % 3], lose=i % 500 == 5)
            if i % 3_000 == 2_999:
                for worker in range(3):
                    while not engine.cut(worker, epoch=i // 3_000):
                        time.sleep(0.001)
        engine.writer.say("requests", [(1, 0, "r-1", "m", "t", 5, 7, 9)])
        engine.wait(2, 9 << 32, 4, 0, 1)
        engine.end()

    assert record(engine, tmp_path / "o.mscope", threading.Thread(target=script)) == "ended"
    trace = Trace.open(tmp_path / "o.mscope")
    assert trace.state == "sealed"
    events = rows_of(trace)
    assert sorted(zip(events["worker"].to_pylist(), events["seq"].to_pylist(), strict=True)) == sorted(engine.truth)
    intervals, coverage = rows_of(trace, "intervals"), rows_of(trace, "coverage")
    assert sum(intervals["seqs"].to_pylist()) == 12_000
    assert sum(intervals["lost"].to_pylist()) == len(engine.lost)
    assert sum(coverage["written"].to_pylist()) == events.num_rows
    loss = rows_of(trace, "loss").to_pylist()
    assert sum(r["count"] for r in loss if r["kind"] == "queue_full") == len(engine.lost)
    assert [r["external_id"] for r in trace.table("requests").to_pylist()] == ["r-1"]
    assert [r["waiting"] for r in rows_of(trace, "now").to_pylist()] == [False, False, True]
    assert not check(tmp_path / "o.mscope").findings


def test_stopping_asks_for_a_cut_and_seals(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    stop = threading.Event()

    def script() -> None:
        while engine.writer.commit != 1:
            time.sleep(0.001)
        assert engine.writer.mask == engine.layout.exported
        for _ in range(100):
            engine.fire(0)
        stop.set()
        while engine.writer.commit != 2:
            time.sleep(0.001)
        assert engine.writer.mask == 0
        engine.cut(0)
        engine.acknowledge()

    reason = record(engine, tmp_path / "o.mscope", threading.Thread(target=script), stopped=stop.is_set)
    assert reason == "stopped"
    trace = Trace.open(tmp_path / "o.mscope")
    assert (trace.state, trace.manifest["end"]["reason"]) == ("sealed", "stopped")
    assert rows_of(trace, "intervals")["closed"].to_pylist() == [True]


def test_a_second_capture_of_the_same_engine_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    with (
        SegmentReader.open(engine.writer.path, write=True) as one,
        SegmentReader.open(engine.writer.path, write=True) as two,
    ):
        session = Session(one, tmp_path / "one.mscope")
        with pytest.raises(MegascopeError, match=rf"process {os.getpid()} \(.+\) records it already"):
            Session(two, tmp_path / "two.mscope")
        assert not (tmp_path / "two.mscope").exists()
        engine.end()
        session.run(stopped=lambda: False)


def test_a_capture_is_refused_before_anything_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after all programs have been compiled; and who holds it is said."""
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    monkeypatch.setattr(wanted, "for_engine", lambda *_: pytest.fail("programs were compiled"))
    monkeypatch.setattr(lease, "named", lambda pid: f"process {pid} (megascope tui)")
    with SegmentReader.open(engine.writer.path, write=True) as segment, Lease(segment):
        with pytest.raises(MegascopeError) as e:
            run(["capture", str(engine.writer.path), "-o", str(tmp_path / "o.mscope")])
        assert f"process {os.getpid()} (megascope tui) records it already, for a workbench" in e.value.why
        assert e.value.todo.startswith("quit that workbench first")
        assert not (tmp_path / "o.mscope").exists()


def test_a_recording_that_cannot_be_made_lets_go_of_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    (tmp_path / "o.mscope").mkdir()
    with SegmentReader.open(engine.writer.path, write=True) as segment:
        with pytest.raises(Refused, match="it exists"):
            Session(segment, tmp_path / "o.mscope")
        assert segment.lease() == (0, 0)
        Lease(segment).release()


def test_a_request_that_may_still_be_carried_out_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    undone: list[str] = []

    def unanswered(segment: SegmentReader, *_: object, **__: object) -> None:
        raise Unanswered(segment, "cannot attach query", "the engine does not answer")

    monkeypatch.setattr(attaching, "attach", unanswered)
    monkeypatch.setattr(attaching, "detach", lambda _, name, **__: undone.append(name))
    program = attaching.load("complete { @n = count(); }", {}, query=True)
    with SegmentReader.open(engine.writer.path, write=True) as segment:
        session = Session(segment, tmp_path / "o.mscope")
        with pytest.raises(Unanswered):
            session.attach_all([(program, Limits())])
        session.release()
    assert undone == ["query"]


def test_what_cannot_be_detached_in_the_end_is_said_and_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    path, asked = engine.writer.path, list[str]()

    def refuses(_: SegmentReader, program: Program, *__: object, **___: object) -> attaching.Attached:
        if program.name == "trigger_3":
            raise MegascopeError("cannot attach trigger_3", "the engine does not answer; the request is withdrawn")
        return attaching.Attached(2, 1, program.name, 0.0)

    def detach(_: SegmentReader, name: str, **__: object) -> None:
        asked.append(name)
        raise MegascopeError("cannot detach", "the engine does not answer") if asked[1:] else Refused("x", "is gone")

    monkeypatch.setattr(attaching, "attach", refuses)
    monkeypatch.setattr(attaching, "detach", detach)
    on = [word for _ in range(3) for word in ("--on", "complete { emit(); }")]
    with pytest.raises(MegascopeError, match="cannot attach trigger_3"):
        run(["capture", str(path), "-o", str(tmp_path / "o.mscope"), "--program", "none", *on])
    assert asked == ["trigger", "trigger_2"]
    told = f"may still run trigger_2: megascope programs {path} shows it, megascope detach ends it"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "o.mscope").exists()


def test_a_segment_cut_while_recording_ends_the_recording_in_order(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    for _ in range(100):
        engine.fire(0)

    def script() -> None:
        time.sleep(0.1)
        os.truncate(tmp_path / "a.mseg", 4096)

    assert record(engine, tmp_path / "o.mscope", threading.Thread(target=script)) == "truncated"
    trace = Trace.open(tmp_path / "o.mscope")
    assert trace.state == "sealed"
    assert rows_of(trace).num_rows == 100
    assert "segment_truncated" in rows_of(trace, "loss")["kind"].to_pylist()
    assert rows_of(trace, "intervals")["closed"].to_pylist() == [False]


ENGINE_THAT_DIES = """
import os, pathlib, signal, sys
sys.path.insert(0, {here!r})
from doomed import record_and_acknowledge
from scripted import ScriptedEngine
engine = ScriptedEngine(pathlib.Path({path!r}), [0, 0])
for i in range({rows}):
    engine.fire(i % 2)
    if i == 49:
        engine.cut(0), engine.cut(1)
print("fired", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("rows", [50, 120])
def test_an_engine_that_is_killed(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.mseg"
    code = ENGINE_THAT_DIES.format(here=str(Path(__file__).parent), path=str(path), rows=rows)
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"fired\n"
    with SegmentReader.open(path, write=True) as segment:
        session = Session(segment, tmp_path / "o.mscope")
        child.kill()
        child.wait()
        assert session.run(stopped=lambda: False) == "died"
    trace = Trace.open(tmp_path / "o.mscope")
    assert trace.manifest["end"]["reason"] == "died"
    assert rows_of(trace).num_rows == rows
    intervals = rows_of(trace, "intervals").to_pylist()
    unclosed = [r for r in intervals if not r["closed"]]
    # Nothing is claimed of an interval that nobody closed; what was seen of it is said.
    assert sum(r["dequeued"] for r in unclosed) == rows - 50
    assert bool(unclosed) == (rows > 50)
    assert "engine_died" in rows_of(trace, "loss")["kind"].to_pylist()
    assert not [f for f in check(tmp_path / "o.mscope").findings if f.severity == "damaged" and f.file != "loss"]


@pytest.mark.parametrize("when", ["before", "in the last moment", "while it settles"])
def test_the_death_of_an_engine_is_why_a_short_recording_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """However short: the recording that is over at the same time, or a moment before, has not just been stopped."""
    path = tmp_path / "a.mseg"
    code = ENGINE_THAT_DIES.format(here=str(Path(__file__).parent), path=str(path), rows=120)
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"fired\n"

    def die() -> None:
        child.kill()
        child.wait()

    if when == "before":
        die()
    elif when == "in the last moment":
        monkeypatch.setattr(session_module, "STATUS_S", 1e9)
    with SegmentReader.open(path, write=True) as segment:
        session = Session(segment, tmp_path / "o.mscope")

        def stopped() -> bool:
            if when == "in the last moment":
                die()
            return True

        ending = die if when == "while it settles" else lambda: None
        assert session.run(stopped=stopped, ending=ending) == "died"
        session.release()
    trace = Trace.open(tmp_path / "o.mscope")
    assert trace.manifest["end"]["reason"] == "died"
    assert rows_of(trace).num_rows == 120
    assert "engine_died" in rows_of(trace, "loss")["kind"].to_pylist()


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_capture_loses_at_most_the_batch_in_flight(tmp_path: Path, kills: int) -> None:
    """Captures, one after the other, drain one engine that never stops; each is killed at a random moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["megascope.capture.session", "pyarrow.dataset"])
    engine = ScriptedEngine(tmp_path / "a.mseg", [0], policy=Policy.WAIT, block_rows=4096, blocks=32)
    over = threading.Event()

    def run() -> None:
        answered = 0
        while not over.is_set():
            pour(engine, 0, 1_500)
            if engine.writer.commit != answered:
                answered = engine.writer.commit
                engine.cut(0)
                engine.acknowledge()
            time.sleep(0.002)

    thread = threading.Thread(target=run)
    thread.start()
    sealed_seen = 0
    try:
        for i in range(kills):
            out = tmp_path / f"{i}.mscope"
            acknowledged: Synchronized[int] = context.Value("q", 0)
            child = context.Process(target=record_and_acknowledge, args=(engine.writer.path, out, acknowledged))
            child.start()
            while not acknowledged.value and child.is_alive():
                time.sleep(0.001)
            time.sleep(random.Random(i).random() * 0.1)
            assert child.pid
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            trace = Trace.open(out)
            assert trace.state == "unsealed"
            sealed_seen += len(trace.parts("events"))
            seqs = rows_of(trace)["seq"].to_numpy()
            # Without a gap and none twice, however the rows are spread over parts and spool; all that was flushed.
            assert len(seqs) >= acknowledged.value
            assert (seqs == seqs[0] + range(len(seqs))).all() if len(seqs) else True
            if i % 10 == 0:
                repair(out)
                again = Trace.open(out)
                assert rows_of(again)["seq"].to_pylist() == seqs.tolist()
                assert again.state == "sealed"
    finally:
        over.set()
        thread.join()
