"""Marks: firings become rows that claim no more than is kept; notes come from anybody, and nobody holds up the rest."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedEngine

from megascope.__main__ import run
from megascope.capture import marks as marks_module
from megascope.capture.map_recorder import MapRecorder
from megascope.capture.marking import SUFFIX, Note, NoteListener, Taken, clean, send
from megascope.capture.marks import Around, Marks
from megascope.capture.triggers import Triggers
from megascope.store.errors import MegascopeError, Refused, Usage
from megascope.store.loss import LOSS_BY_NAME
from megascope.store.retention import Pins
from megascope.store.tables import MARKS, RING_ROW
from megascope.store.trace import Trace, TraceWriter


class Keeper:
    """What marks need of a writer. horizon: what is older has gone; to: the budget of pins was spent then."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.told = 0
        self.losses: list[tuple[str, int]] = []
        self.pins, self.horizon, self.pinned_to = Pins(), 0, None
        self.raw_stopped: str | None = None
        self.dropped: tuple[int, int] | None = None

    def flush(self) -> None:
        pass

    def take_dropped(self) -> tuple[int, int] | None:
        some, self.dropped = self.dropped, None
        return some

    def drop(self, begin: int, end: int, *, going_on: bool) -> None:
        self.dropped, self.raw_stopped = (begin, end), "disk_budget" if going_on else None

    def pin(self, begin: int, end: int) -> tuple[int, int] | None:
        begin = max(begin, self.horizon)
        if self.pinned_to is not None or begin > end:
            return None
        self.pins.add(begin, end)
        return begin, end

    def spend(self, at: int) -> None:
        self.pinned_to: int | None = at
        self.pins.cut(at)

    def upsert(self, table: str, batch: pa.RecordBatch) -> None:
        assert table == MARKS.name
        assert batch.schema == MARKS.schema
        self.told += 1
        for row in batch.to_pylist():
            self.rows[row["mark"]] = row

    def lose(self, kind: str, count: int, **_: Any) -> None:
        assert kind in LOSS_BY_NAME
        self.losses.append((kind, count))


def ring_rows(rows: list[tuple[int, int]], worker: int = 0, seq: int = 1) -> pa.RecordBatch:
    """of (time, by)"""
    t, by = np.array([r[0] for r in rows], np.uint64), np.array([r[1] for r in rows], np.uint32)
    columns = {"t": t, "by": by, "worker": np.full(len(rows), worker), "seq": np.arange(seq, seq + len(rows))}
    zero = np.zeros(len(rows))
    arrays = [pa.array(columns.get(c.name, zero).astype(RING_ROW.dtype[c.name])) for c in RING_ROW]
    return pa.record_batch(arrays, schema=RING_ROW.schema)


def marks_of(keeper: Keeper, *, last: int = 1 << 40) -> Marks:
    """Marks of a recording whose rows are all there up to `last`."""
    marks = Marks(keeper)  # type: ignore[arg-type]
    marks.saw(ring_rows([(0, 1), (last, 1)]))
    return marks


ACT = st.one_of(
    st.tuples(st.just("fire"), st.integers(1, 2), st.integers(-300, 50), st.integers(0, 60)),
    st.tuples(st.just("fire"), st.integers(1, 2), st.integers(-20, 0), st.integers(0, 60)),
    st.tuples(st.just("note"), st.booleans()),
    st.tuples(st.just("time"), st.integers(0, 400)),
    st.tuples(st.just("window"), st.integers(0, 500)),
    st.tuples(st.just("spend")),
    st.tuples(st.just("drop"), st.integers(0, 100), st.booleans()),
    st.tuples(st.just("again")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACT, max_size=40), st.integers(0, 100), st.integers(0, 100))
def test_marks_claim_what_is_kept_and_miss_no_firing(acts: list[tuple[Any, ...]], before: int, after: int) -> None:
    keeper, now, fired, notes = Keeper(), 1000, dict[int, int](), 0
    marks, gone = marks_of(keeper), set[int]()
    asked: list[tuple[int, int, int]] = []
    for act in acts:
        match act:
            case ("fire", program, at, length):
                first = max(now + at, 0)
                asked.append((program, first, first + length))
                marks.fired(program, f"p{program}", first, first + length, 3, Around(before, after))
                fired[program] = fired.get(program, 0) + 3
            case ("note", keep):
                marks.note(now, "x", Around(before, after) if keep else None)
                notes += 1
            case ("time", by):
                now += by
            case ("window", lag):
                keeper.horizon = max(keeper.horizon, now - lag)
            case ("spend",) if keeper.pinned_to is None:
                keeper.spend(now)
            case ("drop", length, going_on):
                keeper.drop(now, now + length, going_on=going_on)
                gone |= set(range(now, now + length + 1))
                now += length + 1
            case ("again",):
                keeper.raw_stopped = None
        marks.step()
    marks.close()
    rows = list(keeper.rows.values())
    assert sorted(keeper.rows) == list(range(1, len(rows) + 1))
    for program, count in fired.items():
        assert sum(r["firings"] for r in rows if r["program"] == program) == count
    assert sum(r["kind"] == "mark" for r in rows) == notes
    for row in rows:
        assert (row["t_from"] is None) == (row["t_to"] is None)
        if row["t_from"] is not None:
            assert row["t_from"] <= row["t_to"]
            assert any(b <= row["t_from"] and row["t_to"] <= e for b, e in keeper.pins), "claims what is not kept"
            assert gone.isdisjoint(range(row["t_from"], row["t_to"] + 1)), "claims what was refused"
    for program, first, last in asked:
        # Each has its row: one that begins no later, and one whose firings reach it.
        assert any(r["program"] == program and r["t"] <= first <= last for r in rows)
    if keeper.pinned_to is None and keeper.horizon == 0 and not gone:
        assert keeper.losses == []
        for program, first, last in asked:
            mine = [r for r in rows if r["program"] == program]
            assert any(r["t_from"] <= max(first - before, 0) and last + after <= r["t_to"] for r in mine)


def test_a_trigger_that_never_rests_is_one_row_and_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, clock = Keeper(), [0.0]
    monkeypatch.setattr(marks_module.time, "monotonic", lambda: clock[0])
    marks = marks_of(keeper)
    for n in range(20_000):
        clock[0] += 0.05
        marks.fired(2, "trigger", 10 * n, 10 * n + 9, 1, Around(5, 5))
        marks.step()
    assert keeper.told < 60
    marks.close()
    (row,) = keeper.rows.values()
    assert row | {"text": ""} == {
        "mark": 1,
        "t": 0,
        "kind": "trigger",
        "text": "",
        "program": 2,
        "firings": 20_000,
        "t_from": 0,
        "t_to": 199_999 + 5,
    }


def test_more_marks_than_are_listed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "MARKS_MOST", 3)
    keeper = Keeper()
    marks = marks_of(keeper)
    for n in range(10):
        marks.fired(2, "trigger", 100 * n, 100 * n, 1, Around(1, 1))
    marks.close()
    assert list(keeper.rows) == [1, 2, 3]
    assert keeper.losses == [("marks_left_out", 7)]
    assert len(keeper.pins) == 10


def test_rows_of_a_trigger_are_told_by_slot_and_time() -> None:
    """Only rows of its slot from when it was attached to when it was detached; far apart means apart."""
    keeper = Keeper()
    triggers = Triggers(marks_of(keeper))
    triggers.saw(ring_rows([(1, 1 << 5)]))
    triggers.watch("trigger", Around(10, 10))
    other = {"program": 3, "name": "other", "slot": 4, "attached": 0}
    triggers.follow([other, {"program": 7, "name": "trigger", "slot": 5, "attached": 100, "detached": 900}])
    rows = [(99, 1 << 5), (100, 1 << 5 | 1), (150, 1 << 4), (120, 1 << 5), (500, 1 << 31 | 1 << 5), (900, 1 << 5)]
    triggers.saw(ring_rows(rows))
    triggers._marks.close()
    assert [(r["program"], r["t"], r["firings"], r["t_from"], r["t_to"]) for r in keeper.rows.values()] == [
        (7, 100, 2, 90, 130),
        (7, 500, 1, 490, 510),
    ]


def test_no_row_is_kept_before_the_first_or_after_the_last() -> None:
    """What was asked for beyond is not claimed when the recording has ended, of triggers and of notes."""
    keeper = Keeper()
    marks = Marks(keeper)  # type: ignore[arg-type]
    triggers = Triggers(marks)
    triggers.watch("trigger", Around(1000, 50))
    triggers.follow([{"program": 7, "name": "trigger", "slot": 5, "attached": 0}])
    triggers.saw(ring_rows([(100, 1), (150, 1 << 5), (400, 1 << 5), (420, 1)]))
    marks.note(410, "here", Around(300, 500))
    marks.step()
    marks.close()
    claimed = sorted((r["t"], r["t_from"], r["t_to"]) for r in keeper.rows.values())
    assert claimed == [(150, 100, 420), (410, 110, 420)]


def test_rows_that_were_refused_are_not_claimed() -> None:
    """However late that is known, before a mark, in it or while it comes; and each such mark is counted once."""
    keeper = Keeper()
    marks = marks_of(keeper, last=5000)
    assert (marks.note(1000, "in time", Around(500, 500)).t_to, keeper.losses) == (1500, [])
    marks.fired(2, "trigger", 1000, 1000, 1, Around(10, 500))
    keeper.drop(1200, 1300, going_on=True)
    marks.step()
    during = marks.note(1400, "during", Around(500, 500))
    nothing = marks.note(2000, "nothing", Around(100, 100))
    assert (during.t_from, during.t_to) == (900, 1199)
    assert (nothing.t_from, nothing.t_to) == (None, None)
    keeper.drop(1350, 2050, going_on=False)
    marks.step()
    marks.fired(2, "trigger", 2100, 2100, 1, Around(1000, 10))
    whole = marks.note(3000, "after", Around(500, 500))
    assert (whole.t_from, whole.t_to) == (2500, 3500)
    marks.close()
    assert {r["text"] + str(r["t"]): (r["t_from"], r["t_to"]) for r in keeper.rows.values()} == {
        "in time1000": (500, 1199),
        "trigger1000": (990, 1199),
        "during1400": (900, 1199),
        "nothing2000": (2051, 2100),
        "trigger2100": (2051, 2110),
        "after3000": (2500, 3500),
    }
    assert keeper.losses == [("pins_spent", 1)] * 5


def test_rows_that_the_disk_refused_are_in_no_mark(tmp_path: Path) -> None:
    """Of a trace: all that a mark claims is in it; what the writer still holds at the end is decided before that."""
    path, n = tmp_path / "a.mscope", 1 << 15
    writer = TraceWriter.create(path, {}, {}, max_bytes=6_000_000)
    marks = Marks(writer)
    for first in range(1, 4 * n, n):
        rows = ring_rows([(t, 1) for t in range(first, first + n)], seq=first)
        marks.saw(rows)
        writer.append("events", rows)
    marks.note(100, "there", Around(50, 50))
    marks.note(3 * n, "refused", Around(n // 2, n // 2))
    marks.note(3 * n, "partly", Around(3 * n - 100, 10))
    writer.flush()
    assert writer.raw_stopped == "disk_budget"
    marks.close()
    writer.finish("ended", t=4 * n)
    with Trace.open(path) as trace:
        claimed = {r["text"]: (r["t_from"], r["t_to"]) for r in trace.table("marks").to_pylist()}
        kept = sum(p.rows for p in trace.parts("events"))
    assert 0 < kept < 3 * n - n // 2
    assert claimed == {"there": (50, 150), "refused": (None, None), "partly": (100, kept)}


def test_nothing_is_claimed_from_before_the_recorder() -> None:
    """On an engine that runs already triggers emit before the monitors record, and these do not begin at once."""
    keeper = Keeper()
    marks = Marks(keeper)  # type: ignore[arg-type]
    triggers = Triggers(marks)
    triggers.watch("trigger", Around(1000, 50))
    triggers.follow([{"program": 7, "name": "trigger", "slot": 5, "attached": 0}])
    triggers.saw(ring_rows([(100, 1 << 5)], seq=40))
    early = marks.note(110, "before it", Around(50, 50))
    assert (early.t_from, early.t_to) == (None, None)
    triggers.saw(ring_rows([(120, 1 << 5), (140, 1), (150, 1 << 5 | 1)], worker=0, seq=41))
    triggers.saw(ring_rows([(145, 1), (155, 1)], worker=1, seq=9))
    triggers.saw(ring_rows([(400, 1)], worker=2, seq=1))  # which has done nothing before
    marks.whole.begun = True
    triggers.saw(ring_rows([(900, 1)], worker=3, seq=5))  # which has recorded all the time, and did nothing
    marks.close()
    claimed = {r["text"]: (r["t"], r["t_from"], r["t_to"]) for r in keeper.rows.values()}
    assert claimed == {"trigger": (100, 145, 200), "before it": (110, 145, 160)}
    assert keeper.losses == []


def taken(note: Note) -> Taken:
    return Taken(7, 1234, note.before, note.after, f"trace of {note.text}")


class Served:
    """A recorder that polls, on a thread."""

    def __init__(self, segment: Path) -> None:
        self.listener = NoteListener(segment)
        assert self.listener.problem == ""
        self.stop = threading.Event()
        self.slowest = 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            self.listener.poll(taken)
            time.sleep(0.002)
        self.listener.close()

    def end(self) -> None:
        self.stop.set()
        self.thread.join()


def test_a_note_is_answered(tmp_path: Path) -> None:
    """However long the path is: a socket's address has at most 107 bytes."""
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    segment = folder / "a.mseg"
    with pytest.raises(Refused, match="nobody records it"):
        send(segment, Note("early"))
    served = Served(segment)
    try:
        place = segment.with_name("a.mseg" + SUFFIX)
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert send(segment, Note("hello  there\n", 5, 6)) == Taken(7, 1234, 5, 6, "trace of hello there")
        assert send(segment, Note("é" * 500)).t_from is None
    finally:
        served.end()
    assert not place.exists()
    with pytest.raises(Refused, match="nobody records it"):
        send(segment, Note("late"))


def test_of_a_recording_that_goes_with_its_recorder_a_mark_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recording of maps that a workbench makes for itself."""
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    recorder = MapRecorder(engine.writer.path, tmp_path / "maps.mscope")
    try:
        assert run(["mark", "hello", str(engine.writer.path)]) == 0
    finally:
        engine.end()
        assert recorder.stop()
    _, told = capsys.readouterr()
    assert told.startswith("mark 1 at ")
    assert f"this trace is temporary: with process {os.getpid()} (" in told
    assert "the mark is gone too" in told
    assert f"start megascope capture {engine.writer.path}, and mark again to keep it" in told


def test_nonsense_is_answered_and_silence_is_not_waited_for(tmp_path: Path) -> None:
    segment = tmp_path / "a.mseg"
    served = Served(segment)
    address = str(segment) + SUFFIX
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(12)]
    try:
        for s in silent:
            s.connect(address)
        good = json.dumps({"text": "x", "before": 1, "after": 2}).encode()
        for raw in (
            b"\xff" * 100,
            b"[" * 5000,
            b"{}",
            b"null",
            b'{"text": 1}',
            b'{"text": ""}',
            b'{"text": "x", "before": -1}',
            b'{"text": "x", "before": true}',
            b'{"text": "x", "after": 1e9}',
            json.dumps({"text": "y" * 501}).encode(),
            good + b"!",
        ):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.settimeout(10)
                s.connect(address)
                s.send(raw)
                assert json.loads(s.recv(1 << 16)) == {"problem": "the message is no note"}, raw
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(address)
            s.send(good)  # and does not wait for the answer
        assert send(segment, Note("still there")).mark == 7
    finally:
        for s in silent:
            s.close()
        served.end()


def test_the_socket_of_a_killed_recorder_refuses_and_is_taken_over(tmp_path: Path) -> None:
    segment = tmp_path / "a.mseg"
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom megascope.capture.marking import NoteListener\n"
        "NoteListener(Path(sys.argv[1]))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(segment)], check=False, timeout=60)
    assert segment.with_name("a.mseg" + SUFFIX).exists()
    with pytest.raises(Refused, match="nobody records it"):
        send(segment, Note("x"))
    served = Served(segment)
    try:
        assert send(segment, Note("x")).mark == 7
    finally:
        served.end()


def test_a_recorder_that_hangs_or_ends_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.capture.marking._ANSWER_S", 0.2)
    segment = tmp_path / "a.mseg"
    listener = NoteListener(segment)
    with pytest.raises(MegascopeError, match="did not answer"):
        send(segment, Note("x"))
    ending = threading.Timer(0.05, listener.close)
    ending.start()
    with pytest.raises(Refused, match=r"has just ended|nobody records it"):
        send(segment, Note("x"))
    ending.join()


def test_where_no_socket_can_be_made_the_recording_goes_on(tmp_path: Path) -> None:
    (tmp_path / ("a.mseg" + SUFFIX)).mkdir()
    listener = NoteListener(tmp_path / "a.mseg")
    assert listener.problem
    listener.poll(taken)
    listener.close()


@pytest.mark.parametrize("text", ["", " \n\t ", "x" * 501, "\x00\x1b"])
def test_what_is_no_note(text: str) -> None:
    with pytest.raises(Usage, match="the note has"):
        clean(text)


def test_a_note_is_one_printable_line() -> None:
    assert clean("a\nb\x1b[0m\t c‮") == "a b [0m c"
    assert os.linesep not in clean("x\ny")
