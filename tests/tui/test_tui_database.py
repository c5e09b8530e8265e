"""The database's thread: newest question first, late answers dropped, quitting ends what runs; and it is a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import duckdb
import pytest
from tui_driver import opened

from megascope.analyze.session import Session
from megascope.store.errors import Refused
from megascope.tui.database import Answer, Database, Failure, Posted, Question

ENDLESS = "SELECT count(*) FROM range(10000000000000) AS a, range(1000000) AS b WHERE a.range % 7 = b.range"


class Asked:
    """A database, and what it has posted."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self.posted: Queue[Posted] = Queue()
        self.database = Database(open_session, self.posted.put, "test")
        self.database.start()

    def answer(self) -> Posted:
        """The next that is posted."""
        return self.posted.get(timeout=90)

    def nothing_more(self) -> bool:
        """Whether nothing is posted any more."""
        while self.database.busy:
            time.sleep(0.01)
        try:
            self.posted.get(timeout=0.05)
        except Empty:
            return True
        return False


@pytest.fixture
def asked(host: Path) -> Iterator[Asked]:
    made = Asked(lambda: Session.open(host, threads=1))
    yield made
    assert made.database.close()


def test_an_answer_says_whether_there_is_more(asked: Asked) -> None:
    asked.database.ask(Question("a", "SELECT range FROM range(10)", rows=10))
    answer = asked.answer()
    assert isinstance(answer, Answer)
    assert (answer.table.num_rows, answer.more) == (10, False)
    asked.database.ask(Question("a", "SELECT range FROM range(1000000)", rows=10))
    answer = asked.answer()
    assert isinstance(answer, Answer)
    assert (answer.table.num_rows, answer.more) == (10, True)


def test_a_newer_question_interrupts_an_older_one_of_its_key(asked: Asked) -> None:
    asked.database.ask(Question("a", ENDLESS))
    time.sleep(0.3)
    number = asked.database.ask(Question("a", "SELECT 1 AS x"))
    answer = asked.answer()
    assert isinstance(answer, Answer)
    assert (answer.number, answer.table["x"].to_pylist()) == (number, [1])
    assert asked.database.is_current(answer)
    assert asked.nothing_more()


def test_a_burst_costs_two_queries_at_most(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    run = Session.run

    def counted(self: Session, sql: str, **how: float | None) -> object:
        begun.append(sql)
        return run(self, sql, **how)

    monkeypatch.setattr(Session, "run", counted)
    asked.database.ask(Question("other", "SELECT 0 AS x, count(*) FROM range(30000000)"))
    for i in range(200):
        asked.database.ask(Question("a", f"SELECT {i} AS x"))
    answers = [asked.answer(), asked.answer()]
    assert asked.nothing_more()
    assert [a.table["x"].to_pylist() for a in answers if isinstance(a, Answer)] == [[0], [199]]
    assert len(begun) <= 3


def test_a_late_answer_is_not_current(asked: Asked) -> None:
    asked.database.ask(Question("a", "SELECT 1 AS x"))
    first = asked.answer()
    asked.database.ask(Question("a", "SELECT 2 AS x"))
    assert not asked.database.is_current(first)
    assert asked.database.is_current(asked.answer())
    asked.database.forget("a")
    assert not asked.database.is_current(first)


def test_closing_ends_the_query_that_runs(host: Path) -> None:
    asked = Asked(lambda: Session.open(host, threads=1))
    asked.database.ask(Question("a", ENDLESS))
    while not asked.database.busy:
        time.sleep(0.01)
    assert asked.database.close(20)
    assert asked.posted.empty()


def test_a_mistake_and_a_trace_that_cannot_be_opened_are_one_line(asked: Asked) -> None:
    asked.database.ask(Question("a", "SELECT nothing FROM tasks"))
    failure = asked.answer()
    assert isinstance(failure, Failure)
    assert "\n" not in failure.error
    assert "nothing" in failure.error
    assert failure.defect is None

    def refuse() -> Session:
        raise Refused("cannot open x", "it is damaged", "run megascope check on it")

    closed = Asked(refuse)
    closed.database.ask(Question("a", "SELECT 1"))
    failure = closed.answer()
    assert isinstance(failure, Failure)
    assert failure.error == "cannot open x: it is damaged; run megascope check on it"
    assert closed.database.close()


def test_a_defect_is_handed_over_and_the_thread_goes_on(asked: Asked) -> None:
    asked.database.ask(Question("a", "SELECT 1 AS x", shape=lambda table: table["y"]))
    failure = asked.answer()
    assert isinstance(failure, Failure)
    assert isinstance(failure.defect, KeyError)
    asked.database.ask(Question("a", "SELECT 1 AS x"))
    assert isinstance(asked.answer(), Answer)


def test_reopening_opens_the_trace_anew(asked: Asked) -> None:
    asked.database.ask(Question("a", "SELECT 1"))
    first = asked.answer()
    asked.database.reopen()
    asked.database.ask(Question("a", "SELECT 1"))
    second = asked.answer()
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert (first.session, second.session) == (1, 2)


@pytest.mark.asyncio
async def test_no_database_work_on_the_screens_thread(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every screen is visited and asked; whatever touches DuckDB or opens the trace does so elsewhere."""
    here = threading.get_ident()
    elsewhere: set[str] = set()

    def watched(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(*given: object, **named: object) -> object:
            assert threading.get_ident() != here, f"{kind.__name__}.{name} on the screen's thread"
            elsewhere.add(name)
            return original(*given, **named)

        monkeypatch.setattr(kind, name, staticmethod(call) if name == "open" else call)

    for name in ("open", "run", "coverage_lines", "window", "touched"):
        watched(Session, name)
    connect = duckdb.connect

    def connected(*given: object, **named: object) -> object:
        assert threading.get_ident() != here
        return connect(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(duckdb, "connect", connected)
    async with opened(host) as bench:
        for key in "12345":
            await bench.press(key)
        await bench.press("2", "plus", "right", "space", "right", "space", "3", "down", "d", "b", "6", "f5")
        assert "rows in" in bench.text
    assert {"open", "run", "coverage_lines", "window"} <= elsewhere


@pytest.mark.asyncio
async def test_keys_work_while_a_query_runs_and_quitting_ends_it(host: Path) -> None:
    async with opened(host, size=(100, 30)) as bench:
        await bench.press("6")
        bench.app.screens_by_key["sql"].edit(ENDLESS)  # type: ignore[attr-defined]
        await bench.pilot.press("f5")
        await bench.pilot.pause(0.2)
        assert bench.app.sql_database.busy
        # Another screen answers meanwhile: it has a session of its own.
        await bench.pilot.press("escape", "escape", "3")
        await bench.until("tasks 1 to")
        await bench.pilot.press("6", "e")
        bench.app.screens_by_key["sql"].edit(ENDLESS)  # type: ignore[attr-defined]
        await bench.pilot.press("f5")
        await bench.pilot.pause(0.2)
        assert bench.app.sql_database.busy
        begun = time.monotonic()
    assert not bench.app.sql_database.busy
    assert time.monotonic() - begun < 20
