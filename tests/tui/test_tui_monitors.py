"""Monitors by keys: a query typed, judged, attached, replaced and detached; recorded where nobody does; or replayed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import monitor_engines
import pytest
from textual import events
from tui_driver import PATIENCE_S, Driven, opened

from megascope.analyze.session import Session
from megascope.capture import control, target
from megascope.tui.attached import Program
from megascope.tui.editor import Editor
from megascope.tui.query_line import QueryLine
from megascope.tui.rows import Rows
from megascope.tui.watching import Watching

pytestmark = pytest.mark.asyncio
look, programs, replay = control.look, control.programs, control.replay
"""As they are before a test watches who calls them."""
COUNTS = "complete { @n[class] = count(); }"
_KEYS = {" ": "space", "{": "left_curly_bracket", "}": "right_curly_bracket", "@": "at", "[": "left_square_bracket"}
_KEYS |= {"]": "right_square_bracket", "=": "equals_sign", "(": "left_parenthesis", ")": "right_parenthesis"}
_KEYS |= {";": "semicolon"}


@pytest.fixture
def engine() -> Iterator[target.Target]:
    """An engine that runs without end."""
    running = target.start(f"demo:{monitor_engines.ENDLESS}", [])
    running.wait_for_segment(120.0, lambda: False, lambda _: None)
    yield running
    assert running.process is not None
    running.process.terminate()
    running.end()


@contextmanager
def recorded(engine: target.Target, out: Path) -> Iterator[Path]:
    """A recording of it that goes on, by a process of its own."""
    words = ["capture", str(engine.path), "-o", str(out), "--no-raw", "--program", "none", "--quiet"]
    recorder = subprocess.Popen([sys.executable, "-m", "megascope", *words], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (out / "manifest.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield out
    finally:
        recorder.terminate()
        recorder.wait()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the threads on which segments, traces, the compiler and the verifier were asked."""
    seen: set[str] = set()

    def watched(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def told(*args: Any, **named: Any) -> Any:
            seen.add(threading.current_thread().name)
            return call(*args, **named)

        monkeypatch.setattr(owner, name, told)

    for name in ("look", "programs", "attach", "detach", "judge", "of_program", "of_record", "tables_of", "replay"):
        watched(control, name)
    watched(Session, "run")
    return seen


async def type_query(bench: Driven, text: str) -> None:
    """Key by key, without waiting after each until the process is idle."""
    await bench.pilot.press("slash")
    for c in text:
        bench.widget(QueryLine).post_message(events.Key(_KEYS.get(c, c), c))
    await until(bench, lambda: bench.widget(QueryLine).value == text)


async def until(bench: Driven, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, bench.text
        await bench.pilot.pause(0.05)


def program(bench: Driven, name: str) -> Program | None:
    screen = bench.app.screen
    assert isinstance(screen, Watching)
    return next((p for p in screen._programs if p.name == name), None)


def shown(bench: Driven, column: str) -> list[Any]:
    """A column of the map that is shown."""
    rows = bench.widget(Rows, "#map").page.rows
    return [row[column] for row in rows if column in row]


async def test_a_query_is_typed_attached_followed_replaced_and_detached(
    engine: target.Target, tmp_path: Path, threads: set[str]
) -> None:
    with recorded(engine, tmp_path / "o.mscope") as trace:
        async with opened(trace, size=(120, 40)) as bench:
            await bench.pilot.press("7")
            # The recording says of whom it is, and the engine is found.
            await bench.until("no program is attached; / asks")
            await type_query(bench, COUNTS)
            await bench.until("accepted · simt")
            await bench.until("@n count, ")
            await bench.pilot.press("enter")
            await bench.until("attached query (program ")
            assert [p.name for p in programs(engine.path).programs] == ["query"]
            # Rows arrive, and more of them.
            await until(bench, lambda: sum(shown(bench, "value")) > 0)
            before = sum(shown(bench, "value"))
            await until(bench, lambda: sum(shown(bench, "value")) > before)
            assert "l00.attn" in shown(bench, "class")
            seen = program(bench, "query")
            assert seen is not None
            assert (seen.state, seen.hooks, seen.missing) == ("attached", ("complete",), 0)
            # Its query is edited, and takes its place.
            await bench.pilot.press("e")
            line = bench.widget(QueryLine)
            assert line.has_focus
            assert line.value == COUNTS
            line.put(COUNTS.replace("complete", "complete,start"))
            await bench.until("accepted · simt")
            await bench.pilot.press("enter")
            await bench.until("replaced query (program ")
            (running,) = programs(engine.path).programs
            assert running.program is not None
            assert running.program.source.startswith("complete,start")
            await until(bench, lambda: (p := program(bench, "query")) is not None and p.hooks == ("start", "complete"))
            # Another beside it, by history; then that one goes.
            await bench.pilot.press("slash", "up", "up")
            await until(bench, lambda: bench.widget(QueryLine).value == COUNTS)
            await bench.pilot.press("enter")
            await bench.until("attached query_2 (program ")
            await until(bench, lambda: (p := bench.app.screen._program) is not None and p.name == "query_2")  # type: ignore[attr-defined]
            await bench.pilot.press("d")
            await bench.until("detached query_2 in")
            assert [p.name for p in programs(engine.path).programs] == ["query"]
            await until(bench, lambda: (p := program(bench, "query_2")) is not None and p.state == "detached")
            await bench.pilot.press("d")
            await bench.until("query_2 is not attached to a live engine")
    assert threads
    assert threading.main_thread().name not in threads


async def test_a_rejected_query_shows_where_and_is_not_attached(engine: target.Target, tmp_path: Path) -> None:
    with recorded(engine, tmp_path / "o.mscope") as trace:
        async with opened(trace, size=(100, 30)) as bench:
            await bench.pilot.press("7", "slash")
            await bench.until("no program is attached; / asks")
            bench.widget(QueryLine).put("complete { @n[clas] = count(); }")
            await bench.until("did you mean class?")
            line = next(i for i, text in enumerate(bench.lines) if "@n[clas]" in text)
            assert bench.lines[line + 1].index("^") == bench.lines[line].index("clas]")
            await bench.pilot.press("enter")
            await bench.until("the query is rejected: nothing was attached")
            # What compiles may be refused by the verifier, or by the engine.
            await bench.pilot.press("escape", "slash")
            bench.widget(QueryLine).put("map @m size 1Mi; complete { @m[task] = hist(exec_ns); }")
            await bench.until("accepted")
            await bench.pilot.press("enter")
            await bench.until("cannot attach query")
            assert programs(engine.path).programs == ()


async def test_maps_are_recorded_where_nobody_records(engine: target.Target, threads: set[str]) -> None:
    async with opened(segment=engine.path, size=(120, 40)) as bench:
        await bench.pilot.press("7")
        await bench.until("no program is attached; / asks")
        await bench.pilot.press("r")
        await bench.until("recording coverage and maps")
        await bench.pilot.press("slash")
        bench.widget(QueryLine).put(COUNTS)
        await bench.until("accepted")
        await bench.pilot.press("enter")
        await bench.until("attached query (program ")
        await until(bench, lambda: sum(shown(bench, "value")) > 0)
        trace = bench.app.source.trace
        assert trace is not None
        assert trace.is_dir()
        await bench.pilot.press("r")
        await bench.until("this follows a recording already")
    assert not trace.parent.exists()
    assert look(engine.path).drainer == 0
    assert threading.main_thread().name not in threads


async def test_over_a_recording_a_query_is_replayed(host: Path, threads: set[str]) -> None:
    with Session.open(host) as session, session.run("SELECT count(*) AS n FROM events WHERE hook = 4") as result:
        (truth,) = result.read_all()["n"].to_pylist()
    threads.clear()
    async with opened(host, size=(120, 40)) as bench:
        await bench.pilot.press("7")
        await bench.until("/ asks the recording")
        await type_query(bench, COUNTS)
        # Before the verdict is there: Enter waits for it.
        await bench.pilot.press("enter")
        await bench.until("replayed query over")
        await until(bench, lambda: sum(shown(bench, "value")) == truth)
        seen = program(bench, "query")
        assert seen is not None
        assert (seen.state, seen.eligible, seen.observed, seen.missing) == ("replayed", truth, truth, 0)
        # The SQL behind it is there to read; the SQL screen has another trace.
        await bench.pilot.press("s")
        await bench.until("FROM maps.query_n")
        await bench.pilot.press("enter")
        await bench.until("this asks the replay")
        await bench.pilot.press("d")
        await bench.until("query is not attached to a live engine")
        await bench.pilot.press("r")
        await bench.until("this follows a recording already")
    assert threading.main_thread().name not in threads


async def test_rows_that_programs_chose_are_not_replayed_over(host: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.mscope"
    replay(host, "complete /exec_ns > 1us/ { emit(); }", chosen)
    async with opened(chosen, size=(200, 40)) as bench:
        await bench.pilot.press("7", "slash")
        bench.widget(QueryLine).put(COUNTS)
        await bench.until("accepted")
        await bench.pilot.press("enter")
        await bench.until("cannot replay")
        assert "its rows were chosen by query" in bench.text


async def test_keys_of_the_map(tmp_path: Path) -> None:
    trace = monitor_engines.monitored(tmp_path / "monitored.mscope")
    async with opened(trace, size=(80, 24)) as bench:
        await bench.press("7")
        await bench.until("printf_1")
        await bench.press("down")
        await bench.until("of_class")
        assert "found it full" in bench.text or "bounds" in bench.text
        await bench.press("m")
        await bench.until("greatest")
        await bench.press("M")
        await bench.until("of_class")
        everything = sum(shown(bench, "value"))
        await bench.press("o")
        await bench.until("last 10 s")
        assert sum(shown(bench, "value")) == everything
        await bench.press("o")
        await bench.until("last epoch")
        await until(bench, lambda: 0 < sum(shown(bench, "value")) < everything)
        await bench.press("o", "down", "down", "enter")
        assert bench.widget(Rows, "#map").has_focus
        await bench.until("execution")
        await bench.press("down", "enter")
        await bench.until("l01.attn: 480 values")
        await bench.press("t")
        await bench.until("mean")
        await bench.press("s")
        await bench.until("monitors.map")
        await bench.press("enter")
        assert bench.app.current_mode == "sql"
        assert "FROM maps.latency_execution" in bench.widget(Editor).text
