"""What stands at the bottom applies: an error goes when what it speaks of is over, and can be read as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tui_driver import Driven, opened

from megascope.capture.replaying import Replayed
from megascope.tui import replays
from megascope.tui.database import Database, Failure, Posted, Question
from megascope.tui.editor import Editor
from megascope.tui.lanes import Lanes
from megascope.tui.rows import Rows
from megascope.tui.workbench import NO_TRACE

pytestmark = pytest.mark.asyncio
LONG = "cannot ask this: " + " ".join(f"reason{i}" for i in range(25)) + "; mend it"


class Broken:
    """A database that fails at questions of some keys, as long as `keys` has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
        self.keys = set(keys)
        answer = Database._answer

        def failing(database: Database, number: int, question: Question) -> Posted:
            if question.key in self.keys:
                return Failure(question, number, LONG)
            return answer(database, number, question)

        monkeypatch.setattr(Database, "_answer", failing)


def words(bench: Driven) -> str:
    """The screen's text, however it is wrapped."""
    return " ".join(bench.text.split())


async def test_a_filter_that_is_none_is_mended_where_it_is_typed(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("3", "slash")
        await bench.type("attn exec>2ns workr=3")
        await bench.press("enter")
        assert "cannot filter: tasks have no 'workr'; they have worker, rank, request, step, dep" in words(bench)
        assert "complete, ready, class, task" in words(bench)
        await bench.press(*["backspace"] * 7)
        assert "cannot filter" not in bench.text
        await bench.type("worker=1")
        await bench.press("enter")
        assert {row["worker"] for row in bench.widget(Rows).page.rows} == {1}
        assert "cannot filter" not in bench.text
        await bench.press("slash")
        await bench.type(" workr=3")
        await bench.press("enter", "escape")
        assert "cannot filter" not in bench.text
        assert "filter attn exec>2ns worker=1" in bench.text
        await bench.press("1", "3")
        assert bench.status == ""


async def test_an_sql_error_is_not_told_of_the_next_query(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("6", "f2")
        assert "there is no answer to export yet" in bench.status
        bench.widget(Editor).text = "SELEC 1"
        await bench.press("f5")
        assert "cannot run the query" in bench.status
        await bench.type("x")
        assert "cannot run the query" in bench.status
        await bench.press("f2")
        assert "there is no answer to export yet" in bench.status
        await bench.press("escape", "1", "s", "enter")
        assert bench.app.current_mode == "sql"
        assert bench.status == ""
        await bench.press("f5")
        await bench.press("f2")
        assert "export to" in bench.text
        await bench.press("escape")
        bench.widget(Editor).text = "SELECT nothing"
        await bench.press("f5")
        assert "of a query before: " in bench.text
        await bench.press("f2")
        assert "the answer below is of another query" in bench.status


async def test_what_was_said_of_a_key_goes_with_the_next(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("3", "b")
        assert "nothing to go back to" in bench.status
        await bench.press("down")
        assert bench.status == ""
        await bench.press("b", "1", "3")
        assert bench.status == ""
        await bench.press("7", "d")
        assert "is not attached to a live engine" in bench.status
        await bench.press("slash")
        assert bench.status == ""
        await bench.type("complet {")
        await bench.press("enter")
        await bench.until("the query is rejected")
        await bench.press("backspace")
        await bench.until("rejected ")
        await bench.pilot.pause(0.3)
        assert bench.status == ""


async def test_a_question_without_an_answer_is_told_until_it_has_one(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(monkeypatch, "overview.classes", "app.losses")
    async with opened(host) as bench:
        assert LONG in words(bench), "wrapped, it can be read to its end"
        await bench.press("o", "down")
        assert LONG in words(bench)
        await bench.press("3")
        assert "reason24" in bench.text, "what the app asks, every screen lacks"
        broken.keys.remove("app.losses")
        bench.app._look()
        await bench.settle()
        assert bench.status == ""
        await bench.press("1")
        assert LONG in words(bench)
        broken.keys.clear()
        await bench.press("ctrl+r")
        assert bench.status == ""
        assert bench.widget(Rows).page.rows


async def test_an_interval_that_has_begun_is_told_until_it_ends(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("2", "space", "right", "right")
        assert "interval begins here" in bench.status
        await bench.press("escape")
        assert bench.status == ""
        assert bench.widget(Lanes).mark is None
        await bench.press("space", "right", "space")
        assert "selected: every screen follows" in bench.status
        await bench.press("right")
        assert bench.status == ""


async def test_that_there_is_no_trace_is_told_for_as_long_as_it_is_so(tmp_path: Path) -> None:
    async with opened(segment=tmp_path / "none.mseg") as bench:
        await bench.press("1")
        assert bench.status == NO_TRACE
        await bench.press("o", "down", "3", "slash", "escape", "1")
        assert bench.status == NO_TRACE


@pytest.mark.parametrize(
    ("missing", "still_open", "told"),
    [
        (0, 0, "replayed q over 9 rows"),
        (2, 0, "replayed q over 9 rows; the recording lost 2 of 11 events at its hooks"),
        (
            2,
            1,
            "replayed q over 9 rows; the recording lost 2 of 11 events at its hooks, in closed intervals; "
            "what it lost after its last closed interval is unknown",
        ),
        (0, 1, "replayed q over 9 rows; what it lost after its last closed interval is unknown"),
    ],
)
async def test_a_replay_tells_what_was_lost_and_what_is_unknown(missing: int, still_open: int, told: str) -> None:
    assert replays._told(Replayed(Path(), "q", 9, 11, missing, "all"), still_open) == told
