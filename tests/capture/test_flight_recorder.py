"""The flight recorder as people use it: docs/flight-recorder.md word by word, against a recording that keeps all."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scripted import ScriptedEngine

from megascope.__main__ import run
from megascope.capture.durations import duration
from megascope.capture.programs.language import compile as compile_query
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.session import Session
from megascope.capture.triggers import check as check_trigger
from megascope.store import retention
from megascope.store.check import check
from megascope.store.errors import MegascopeError, Usage
from megascope.store.tables import EVENTS
from megascope.store.trace import Trace

DOCUMENT = (Path(__file__).parents[2] / "docs" / "flight-recorder.md").read_text()
CONSOLE = re.findall(r"```console\n\$ megascope (.*)\n((?:.*\n)*?)```", DOCUMENT)
QUERIES = re.findall(r"```query\n(.*)\n```", DOCUMENT)
KEY = [("rank", "ascending"), ("worker", "ascending"), ("seq", "ascending")]


def events(path: Path) -> pa.Table:
    with Trace.open(path) as trace:
        parts = [pq.read_table(p.path).replace_schema_metadata(None) for p in trace.verified("events")]
        return pa.concat_tables([EVENTS.schema.empty_table(), *parts, trace.tail("events")]).sort_by(KEY)


def starts(path: Path, begin: int, end: int) -> list[tuple[int, int, int]]:
    with Trace.open(path) as trace:
        parts = [pq.read_table(p.path).replace_schema_metadata(None) for p in trace.verified("tasks")]
        tasks = pa.concat_tables([*parts, trace.tail("tasks")]).filter(
            (pc.field("start") >= begin) & (pc.field("start") <= end) & pc.is_valid(pc.field("complete"))
        )
        return sorted(zip(*(tasks[c].to_pylist() for c in ("task", "start", "complete")), strict=True))


def test_the_worked_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command of the page prints what the page says; row by row, the trace is the whole one without the rest."""
    monkeypatch.chdir(tmp_path)
    assert len(CONSOLE) == 4
    for line, expected in CONSOLE:
        words = shlex.split(line)
        assert run(words + (["--quiet"] if words[0] == "capture" else [])) == 0
        out = capfd.readouterr().out
        assert [x.rstrip() for x in out.splitlines()] == [x.rstrip() for x in expected.splitlines()]
    assert run(["check", "night.mscope"]) == 0

    words = shlex.split(CONSOLE[0][0])
    at = words.index("--keep")
    whole = [*words[:at], *words[at + 2 :], "--quiet"]
    whole[whole.index("night.mscope")] = "whole.mscope"
    assert run(whole) == 0
    rolled, everything = events(tmp_path / "night.mscope"), events(tmp_path / "whole.mscope")
    with Trace.open(tmp_path / "night.mscope") as trace, Trace.open(tmp_path / "whole.mscope") as other:
        said = trace.manifest[retention.KEY]
        assert trace.table("marks").equals(other.table("marks"))
        losses = trace.tail("loss").to_pylist()
    assert [r["kind"] for r in losses] == ["retired"] * len(losses)
    assert rolled.num_rows + sum(r["count"] for r in losses) == everything.num_rows
    t = pc.field("t")
    (begin, end), last = said["pins"][0], everything["t"].to_numpy().max()
    for low, high in ((begin, end), (said["horizon"], last)):
        inside = (t >= low) & (t <= high)
        assert rolled.filter(inside).equals(everything.filter(inside))
    assert said["horizon"] <= last - duration("40ms")
    assert starts(tmp_path / "night.mscope", begin, end) == starts(tmp_path / "whole.mscope", begin, end)
    # Nothing else is old: what is neither pinned nor in the window lies within a part of one of them.
    old = rolled["t"].to_numpy()
    with Trace.open(tmp_path / "night.mscope") as trace:
        spans = [(p.t_min, p.t_max) for p in trace.parts("events")]
    for low, high in spans:
        assert low is not None
        assert high is not None
        tasks_reach = duration("5ms")
        assert high + tasks_reach >= said["horizon"] or (low - tasks_reach <= end and high + tasks_reach >= begin)
    assert len(old) < everything.num_rows


@pytest.mark.parametrize("text", QUERIES)
def test_every_trigger_of_the_page_is_one(text: str) -> None:
    check_trigger(compile_query(text, None, {}, "trigger").program)


def test_what_is_no_trigger_is_refused() -> None:
    program = compile_query("complete { @n = count(); }", None, {}, "trigger").program
    with pytest.raises(Usage, match="it emits nothing, so it never fires"):
        check_trigger(program)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("capture demo --keep 0s", "keeps nothing"),
        ("capture demo --before 1s", "say --on QUERY too"),
        ("capture demo --keep 1s --on q --before 2s", "--keep be at least --before"),
        ("capture demo --keep soon", "is not a length of time such as"),
        ("capture demo --max-bytes 5.9M", "--max-bytes 5,900,000 has no room for raw rows; say --max-bytes 6M or more"),
        ("mark note /nowhere/x.mseg", "cannot read segment /nowhere/x.mseg: No such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MegascopeError, match=re.escape(why)):
        run(shlex.split(words))
    assert list(tmp_path.iterdir()) == []


def test_durations() -> None:
    assert [duration(t) for t in ("10m", "1.5s", "20ms", "0s", "2h", "1d", "7ns", "3us")] == [
        *(600 * 10**9, 1_500_000_000, 20_000_000, 0, 7200 * 10**9, 86_400 * 10**9, 7, 3000),
    ]
    for text in (" ", "10", "s", "-1s", "1e3s", "10 m", "nan", "9" * 39 + "s", "99999999d"):
        with pytest.raises(ValueError, match=re.escape(text)):
            duration(text)


def test_a_note_from_another_process(tmp_path: Path) -> None:
    """The verb, in a process of its own, while it is recorded: the note is in the trace, at the engine's time."""
    engine = ScriptedEngine(tmp_path / "a.mseg", [0])
    said: list[subprocess.CompletedProcess[str]] = []

    def mark(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "megascope", "mark", *words, str(tmp_path / "a.mseg")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def script() -> None:
        for _ in range(50):
            engine.fire(0)
        said.append(mark("deployed  v2\n \x1b[31m"))
        for _ in range(50):
            engine.fire(0)
        said.append(mark("--keep", "40ns", "look here"))
        for _ in range(2000):
            engine.fire(0)
            time.sleep(0.0005)
        while not engine.cut(0):
            time.sleep(0.001)
        engine.end()

    said.append(mark("too early"))
    with SegmentReader.open(engine.writer.path, write=True) as segment:
        session = Session(segment, tmp_path / "o.mscope", keep_ns=100)
        thread = threading.Thread(target=script)
        thread.start()
        try:
            assert session.run(stopped=lambda: False) == "ended"
        finally:
            session.release()
            thread.join()
    said.append(mark("too late"))
    assert [s.returncode for s in said] == [3, 0, 0, 3], said
    assert not (tmp_path / "a.mseg.marks").exists()
    for refused, why in ((said[0], "nobody records it"), (said[3], "the engine has ended")):
        assert refused.stderr.count("\n") == 1
        assert why in refused.stderr
    with Trace.open(tmp_path / "o.mscope") as trace:
        first, second = trace.table("marks").to_pylist()
        text = {"deployed v2 [31m": first, "look here": second}
        assert all(text[row["text"]] is row for row in (first, second))
        assert (first["kind"], first["program"], first["firings"]) == ("mark", None, 1)
        assert 1_050 <= first["t"] <= second["t"] <= 1_100
        assert (first["t_from"], first["t_to"]) == (None, None)
        assert (second["t_from"], second["t_to"]) == (second["t"] - 40, second["t"] + 40)
        rows = events(tmp_path / "o.mscope")["t"].to_numpy()
        assert np.isin(np.arange(second["t_from"], second["t_to"] + 1), rows).all()
    assert f"mark 2 at {second['t']} ns in {tmp_path / 'o.mscope'}" in said[2].stderr
    assert f"rows from {second['t_from']} to {second['t_to']} ns are kept" in said[2].stderr
    assert check(tmp_path / "o.mscope").findings == []
