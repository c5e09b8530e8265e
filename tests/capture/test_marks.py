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


class Keeper:
    """What marks need of a writer. horizon: what is older has gone; to: the budget of pins was spent then."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.told = 0
        self.losses: list[tuple[str, int]] = []
        self.pins, self.horizon, self.pinned_to = Pins(), 0, None

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


ACT = st.one_of(
    st.tuples(st.just("fire"), st.integers(1, 2), st.integers(-300, 50), st.integers(0, 60)),
    st.tuples(st.just("fire"), st.integers(1, 2), st.integers(-20, 0), st.integers(0, 60)),
    st.tuples(st.just("note"), st.booleans()),
    st.tuples(st.just("time"), st.integers(0, 400)),
    st.tuples(st.just("window"), st.integers(0, 500)),
    st.tuples(st.just("spend")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACT, max_size=40), st.integers(0, 100), st.integers(0, 100))
def test_marks_claim_what_is_kept_and_miss_no_firing(acts: list[tuple[Any, ...]], before: int, after: int) -> None:
    keeper, now, fired, notes = Keeper(), 1000, dict[int, int](), 0
    marks = Marks(keeper)  # type: ignore[arg-type]
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
        marks.step(now)
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
    for program, first, last in asked:
        # Each has its row: one that begins no later, and one whose firings reach it.
        assert any(r["program"] == program and r["t"] <= first <= last for r in rows)
    if keeper.pinned_to is None and keeper.horizon == 0:
        assert keeper.losses == []
        for program, first, last in asked:
            mine = [r for r in rows if r["program"] == program]
            assert any(r["t_from"] <= max(first - before, 0) and last + after <= r["t_to"] for r in mine)


def test_a_trigger_that_never_rests_is_one_row_and_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, clock = Keeper(), [0.0]
    monkeypatch.setattr(marks_module.time, "monotonic", lambda: clock[0])
    marks = Marks(keeper)  # type: ignore[arg-type]
    for n in range(20_000):
        clock[0] += 0.05
        marks.fired(2, "trigger", 10 * n, 10 * n + 9, 1, Around(5, 5))
        marks.step(10 * n)
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
    marks = Marks(keeper)  # type: ignore[arg-type]
    for n in range(10):
        marks.fired(2, "trigger", 100 * n, 100 * n, 1, Around(1, 1))
    marks.close()
    assert list(keeper.rows) == [1, 2, 3]
    assert keeper.losses == [("marks_left_out", 7)]
    assert len(keeper.pins) == 10


def ring_rows(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    t, by = np.array([r[0] for r in rows], np.uint64), np.array([r[1] for r in rows], np.uint32)
    zero = np.zeros(len(rows))
    columns = {"t": t, "by": by}
    return pa.record_batch([columns.get(c.name, zero).astype(RING_ROW.dtype[c.name]) for c in RING_ROW], RING_ROW.names)


def test_rows_of_a_trigger_are_told_by_slot_and_time() -> None:
    """Only rows of its slot from when it was attached to when it was detached; far apart means apart."""
    keeper = Keeper()
    triggers = Triggers(Marks(keeper))  # type: ignore[arg-type]
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
    marks.step(420)
    marks.close()
    claimed = sorted((r["t"], r["t_from"], r["t_to"]) for r in keeper.rows.values())
    assert claimed == [(150, 100, 420), (410, 110, 420)]


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
