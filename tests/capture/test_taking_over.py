"""A recorder that comes after another one: what it records adds up, wherever in its loop the other one was killed."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from dying import PLACES, record_and_die
from scripted import ScriptedEngine

from megascope.capture import attaching, taking_over
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Cursor, Worker
from megascope.capture.session import Session
from megascope.store.check import check, repair
from megascope.store.tables import RECORDER
from megascope.store.trace import Trace

ENOUGH_S = 60
SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128,workers=5"
HOST = f"{SMALL},monitors=2,steps=0,pace=2,epoch_ms=20,ring_mb=0.5"
OF_ROWS = {"queue_full", "ring_full", "overwritten", "torn_block", "bad_row"}
EMITS = "complete /task % 3 == 0/ { emit(); @n[class] = count(); }"


def rows_of(out: Path, stream: str = "events") -> pa.Table:
    with Trace.open(out) as trace:
        tail = trace.tail(stream)
        return pa.concat_tables([*(pq.read_table(p.path).cast(tail.schema) for p in trace.parts(stream)), tail])


@contextmanager
def engine(tmp_path: Path, spec: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The host engine as a process of its own."""
    path = tmp_path / "a.mseg"
    command = [sys.executable, "-m", "megascope.capture.engines.host", "--segment", str(path), spec]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + ENOUGH_S
            while not path.exists() or path.stat().st_size == 0 or head_of(path) == 0:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.01)
            yield process, path
        finally:
            process.kill()


def head_of(path: Path) -> int:
    try:
        with SegmentReader.open(path) as segment:
            return int(segment.cursors()[:, Cursor.HEAD].sum())
    except Exception:  # it is being made
        return 0


def killed(path: Path, out: Path, place: str, times: int) -> None:
    """A recorder came and was killed there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["megascope.capture.session", "pyarrow.dataset"])
    child = context.Process(target=record_and_die, args=(path, out, place, times))
    child.start()
    child.join(ENOUGH_S)
    assert child.exitcode == -9


def record(path: Path, out: Path, closed: int = 3) -> Session:
    """A recording of at least `closed` rows of coverage, ended in order."""
    end = time.monotonic() + ENOUGH_S
    with SegmentReader.open(path, write=True) as segment:
        session = Session(segment, out)
        try:
            session.run(stopped=lambda: session.writer.rows["coverage"] >= closed or time.monotonic() > end)
        finally:
            session.release()
    return session


def adds_up(out: Path) -> int:
    """Its rows are those of its coverage, program by program; every sequence number was dequeued or lost once."""
    report = check(out)
    assert not [f for f in report.findings if f.severity != "info"], report.findings
    events, coverage = rows_of(out), rows_of(out, "coverage")
    with Trace.open(out) as trace:
        slots = {p["program"]: p["slot"] for p in trace.manifest["programs"]}
    by = events["by"].to_numpy()
    assert pc.all(coverage["closed"]).as_py()
    for program, slot in slots.items():
        written = pc.sum(coverage.filter(pc.equal(coverage["program"], program))["written"]).as_py() or 0
        assert np.count_nonzero(by >> slot & 1) == written
    return events.num_rows


def is_without_gaps(events: pa.Table) -> bool:
    """All events were recorded, so that a worker's numbers follow one another."""
    order = np.lexsort((events["seq"].to_numpy(), events["worker"].to_numpy()))
    worker, seq = events["worker"].to_numpy()[order], events["seq"].to_numpy()[order]
    return bool((np.diff(seq)[np.diff(worker) == 0] == 1).all())


KILLS = [(place, n) for place in PLACES for n in (1, 2, 11, 40) if n == 1 or place != "asked for its mask"]
EARLY = [[("asked for its mask", 1)], [("took rows", 4), ("booked coverage", 2)], [("freed blocks", 9), ("flushed", 2)]]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param([*EARLY, [("took records", 12), ("took exports", 5)]], id="some"),
        pytest.param([[kill] for kill in KILLS], id="all", marks=pytest.mark.slow),
    ],
)
def test_a_recorder_that_is_killed_anywhere_is_followed_by_one_that_adds_up(
    tmp_path: Path, kills: list[list[tuple[str, int]]]
) -> None:
    """One engine; one or more recorders are killed right after some step of their loop, and another follows."""
    numbers, said = count(), list[str]()
    with engine(tmp_path, HOST) as (_, path):
        for dying in kills:
            for place, times in dying:
                out = tmp_path / f"{next(numbers)}.mscope"
                killed(path, out, place, times)
                is_kept(out)
            out = tmp_path / f"{next(numbers)}.mscope"
            session = record(path, out)
            assert adds_up(out) > 0, dying
            assert is_without_gaps(rows_of(out)), dying
            assert not set(rows_of(out, "loss")["kind"].to_pylist()) & OF_ROWS
            said.append(session.taken_over)
    # Who died after freeing all rows has left none, and records that nobody reads an engine frees itself.
    assert any(said)
    assert all(text.startswith("rings were freed before this recording") for text in said if text)


def is_kept(out: Path) -> None:
    """A killed recorder's trace is sound before and after it is repaired, without a gap, and all rows stay."""
    assert not [f for f in check(out).findings if f.severity == "damaged"]
    before = rows_of(out)
    assert is_without_gaps(before)
    repair(out)
    # How many rows its last, open interval should have, nobody knows.
    assert not [f for f in check(out).findings if f.severity == "damaged"]
    assert rows_of(out).num_rows == before.num_rows


@pytest.mark.parametrize("policy", ["wait", "drop", "overwrite"])
def test_programs_that_the_killed_recorder_left_attached(tmp_path: Path, policy: str) -> None:
    """Their rows and coverage go on, and are of the second recording from the same place on."""
    with engine(tmp_path, f"{HOST},policy={policy}") as (_, path):
        with session_of(path, tmp_path / "first.mscope") as session:
            attaching.attach(session.segment, attaching.load(EMITS, {}, name="left"), idle=session._pass)
            session.writer.close()
        for i in range(2):
            killed(path, tmp_path / f"{i}a.mscope", "took rows", 5 + 20 * i)
            out = tmp_path / f"{i}b.mscope"
            record(path, out, closed=20)
            if policy == "overwrite" and rows_of(out, "loss").num_rows:
                assert not [f for f in check(out).findings if f.severity == "damaged"]
            else:
                assert adds_up(out) > 0
            programs = set(rows_of(out, "coverage")["program"].to_pylist())
            assert len(programs) == 2
            assert (rows_of(out)["by"].to_numpy() > 1).any()


def test_without_raw_rows(tmp_path: Path) -> None:
    """Rows of a recorder whose mask is still in force are not of a recording that wants none."""
    with engine(tmp_path, HOST) as (_, path):
        killed(path, tmp_path / "a.mscope", "took rows", 20)
        with SegmentReader.open(path, write=True) as segment:
            session = Session(segment, tmp_path / "b.mscope", raw=False)
            session.attach(attaching.load(EMITS, {}, segment.tables, name="mine"))
            session.run(stopped=lambda: session.writer.rows["coverage"] >= 3)
            session.release()
        assert adds_up(tmp_path / "b.mscope") > 0
        assert not (rows_of(tmp_path / "b.mscope")["by"].to_numpy() & 1).any()


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_an_engine_that_is_gone_too(tmp_path: Path, end: str) -> None:
    """What stands in its rings is kept, and claimed only where whole intervals are there."""
    with engine(tmp_path, f"{HOST},policy=drop") as (process, path):
        killed(path, tmp_path / "a.mscope", "freed blocks", 30)
        limit = time.monotonic() + ENOUGH_S
        with SegmentReader.open(path) as segment:
            while (segment.heads(Cursor.HEAD, "ring") == RingReader(segment).position).all():
                assert time.monotonic() < limit
                time.sleep(0.01)
        getattr(process, end)()
        process.wait(ENOUGH_S)
        out = tmp_path / "b.mscope"
        with SegmentReader.open(path, write=True) as segment:
            session = Session(segment, out)
            assert session.run(stopped=lambda: False) == {"terminate": "ended", "kill": "died"}[end]
            session.release()
    assert rows_of(out).num_rows > 0
    assert not [f for f in check(out).findings if f.severity == "damaged"]
    holds_what_it_claims(out)


def holds_what_it_claims(out: Path) -> None:
    """Closed coverage of the recorder is no more than the rows that are here; open rows make up the rest."""
    coverage = rows_of(out, "coverage")
    own = coverage.filter(pc.equal(coverage["program"], RECORDER))
    assert (pc.sum(own["written"]).as_py() or 0) == rows_of(out).num_rows


# --- with an engine that does exactly what the test says ------------------------------------------------------------


class Answering:
    """A scripted engine that answers a recorder as real ones do, when the test says so."""

    def __init__(self, path: Path, monitor_of: list[int], **sizes: int) -> None:
        self.engine = ScriptedEngine(path, monitor_of, block_rows=64, blocks=64, summary_rows=256, **sizes)  # type: ignore[arg-type]
        self.path = path

    def fire(self, rows: int) -> None:
        for i in range(rows):
            self.engine.fire(i % len(self.engine.monitor_of))

    def cut(self) -> None:
        for worker in range(len(self.engine.monitor_of)):
            assert self.engine.cut(worker)

    def answer(self) -> None:
        self.cut()
        self.engine.writer.cursor[:, Cursor.MASK] = self.engine.writer.mask
        self.engine.writer.worker[:, Worker.FIRED] = self.engine.seq
        self.engine.acknowledge()


@contextmanager
def session_of(path: Path, out: Path) -> Iterator[Session]:
    with SegmentReader.open(path, write=True) as segment:
        session = Session(segment, out)
        try:
            yield session
        finally:
            session.release()


def abandoned(it: Answering, out: Path) -> None:
    """A recorder has asked for its mask, taken rows and records, and is gone without a word."""
    with session_of(it.path, out) as session:
        session.lease.record(it.engine.layout.exported)
        it.answer()
        it.fire(150)
        it.cut()
        it.fire(100)
        session._pass()
        session.writer.close()


def test_rows_wait_for_their_workers_cut(tmp_path: Path) -> None:
    """Two monitors; one of them cuts later. No row is written before it is known whose it is, and none is missed."""
    it = Answering(tmp_path / "a.mseg", [0, 0, 1])
    abandoned(it, tmp_path / "a.mscope")
    it.fire(30)
    it.cut()
    it.fire(60)
    with session_of(it.path, tmp_path / "b.mscope") as session:
        it.fire(90)
        session._pass()
        assert session.accounts.seen_rows.sum() == session.accounts.eligible == 0
        begin = list(it.engine.seq)
        assert it.engine.cut(0)
        assert it.engine.cut(1)
        it.fire(90)
        session._pass()
        assert session.accounts.seen_rows.tolist() == [30, 30, 0]
        begin[2] = it.engine.seq[2]
        assert it.engine.cut(2)
        session._pass()
        it.fire(30)
        it.cut()
        it.engine.end()
        assert session.run(stopped=lambda: False) == "ended"
        assert session.taken_over
    fired = {(w, s) for w, s in it.engine.truth if s > begin[w]}
    events = rows_of(tmp_path / "b.mscope")
    assert set(zip(events["worker"].to_pylist(), events["seq"].to_pylist(), strict=True)) == fired
    assert adds_up(tmp_path / "b.mscope") == len(fired)


def test_rows_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many are given up; the recording then begins at a cut after them, not at one that came with them."""
    monkeypatch.setattr(taking_over, "HELD_ROWS", 100)
    it = Answering(tmp_path / "a.mseg", [0, 1])
    abandoned(it, tmp_path / "a.mscope")
    with session_of(it.path, tmp_path / "b.mscope") as session:
        take = session.rings.take

        def cut_and_take() -> object:
            # The cut stands before the rows that are given up, and its records are taken after them.
            it.fire(40)
            it.cut()
            it.fire(120)
            monkeypatch.setattr(session.rings, "take", take)
            return take()

        monkeypatch.setattr(session.rings, "take", cut_and_take)
        session._pass()
        it.fire(20)
        session._pass()
        assert session.accounts.eligible == 0
        it.cut()
        it.fire(50)
        session._pass()
        it.cut()
        it.engine.end()
        session.run(stopped=lambda: False)
    assert adds_up(tmp_path / "b.mscope") == 50


def test_a_recorder_that_ended_in_order_leaves_nothing_out(tmp_path: Path) -> None:
    """The mask is cleared and every interval cut: whatever is fired from then on is of the next recording."""
    it = Answering(tmp_path / "a.mseg", [0, 1])
    for i in range(3):
        out = tmp_path / f"{i}.mscope"
        stop = threading.Event()
        begin = list(it.engine.seq)

        def script(commit: int = 2 * i + 1, stop: threading.Event = stop) -> None:
            for wanted in (commit, commit + 1):
                while it.engine.writer.commit != wanted:
                    time.sleep(0.001)
                it.answer()
                if wanted == commit:
                    it.fire(101)
                    stop.set()

        thread = threading.Thread(target=script)
        with session_of(it.path, out) as session:
            thread.start()
            assert session.run(stopped=stop.is_set) == "stopped"
            thread.join()
            assert not session.taken_over
        assert adds_up(out) == 101
        events = rows_of(out)
        assert min(events["seq"].to_pylist()) == min(begin) + 1


def test_an_engine_that_never_cuts_again(tmp_path: Path) -> None:
    """Its rows are kept, and nothing is claimed of how many there should be."""
    it = Answering(tmp_path / "a.mseg", [0, 1])
    abandoned(it, tmp_path / "a.mscope")
    with session_of(it.path, tmp_path / "b.mscope") as session:
        it.fire(77)
        it.engine.end()
        session.run(stopped=lambda: False)
        assert "nobody knows" in session.taken_over
    assert rows_of(tmp_path / "b.mscope").num_rows == 77
    assert [f.severity for f in check(tmp_path / "b.mscope").findings if f.file == "events"] == ["info"]


@pytest.mark.parametrize("after", [0, 40])
def test_what_a_gone_engine_left_is_claimed_where_it_is_whole(tmp_path: Path, after: int) -> None:
    """After an end without a drainer: intervals whose rows are all there are closed, those before and after are not."""
    it = Answering(tmp_path / "a.mseg", [0, 0])
    abandoned(it, tmp_path / "a.mscope")
    it.cut()
    it.fire(60)
    it.cut()
    it.fire(after)
    it.engine.end()
    with session_of(it.path, tmp_path / "b.mscope") as session:
        assert session.run(stopped=lambda: False) == "ended"
    coverage = rows_of(tmp_path / "b.mscope", "coverage").to_pylist()
    assert sum(r["written"] for r in coverage if r["closed"]) >= 60
    intervals = [r for r in rows_of(tmp_path / "b.mscope", "intervals").to_pylist() if not r["closed"]]
    seqs = rows_of(tmp_path / "b.mscope")["seq"].to_pylist()
    assert [r["seq_from"] for r in intervals] == [min(seqs)] * 2
    if after:
        assert [r["seq_to"] for r in intervals] == [max(seqs) + 1] * 2
    else:
        assert all(r["seq_to"] - r["seq_from"] == r["dequeued"] for r in intervals)
    holds_what_it_claims(tmp_path / "b.mscope")
    assert not [f for f in check(tmp_path / "b.mscope").findings if f.severity == "damaged"]


def test_rows_before_the_first_recorder_are_its_own(tmp_path: Path) -> None:
    """An engine that began with every hook recorded, and nobody was here yet."""
    it = Answering(tmp_path / "a.mseg", [0, 1])
    it.fire(200)
    it.cut()
    with session_of(it.path, tmp_path / "o.mscope") as session:
        it.fire(10)
        it.cut()
        it.engine.end()
        session.run(stopped=lambda: False)
        assert not session.taken_over
    assert adds_up(tmp_path / "o.mscope") == 210
