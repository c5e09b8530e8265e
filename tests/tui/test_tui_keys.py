"""Every key of every screen does what the list of keys says."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from tui_driver import PATIENCE_S, Driven, opened

from megascope.tui import queries
from megascope.tui.app import Megascope
from megascope.tui.database import Database, Posted, Question
from megascope.tui.editor import Editor
from megascope.tui.lanes import Lanes
from megascope.tui.model import Source
from megascope.tui.rows import Rows
from megascope.tui.workbench import SCREENS, title_of

pytestmark = pytest.mark.asyncio


def rows(bench: Driven) -> Rows:
    """The table of the current screen."""
    found: Rows = bench.widget(Rows)
    return found


async def test_digits_switch_screens_and_question_mark_lists_every_key(host: Path) -> None:
    async with opened(host, size=(120, 50)) as bench:
        for number, name in enumerate(SCREENS, 1):
            await bench.press(str(number))
            assert bench.app.current_mode == name
            await bench.press(*(["escape"] if name == "sql" else []), "question_mark")
            assert f"keys: {title_of(name)}" in bench.text
            assert "quit; a query that runs is ended" in bench.text
            await bench.press("escape", *(["e"] if name == "sql" else []))
            if name == "sql":
                await bench.press("escape")


async def test_every_binding_has_words(host: Path) -> None:
    async with opened(host) as bench:
        for number in range(1, 7):
            await bench.press(str(number))
            screen = bench.app.screens_by_key[bench.app.current_mode]
            for binding in screen.BINDINGS:
                assert binding.tooltip or binding.description  # type: ignore[union-attr]


async def test_overview_sorts_and_goes_to_a_classes_tasks(host: Path) -> None:
    async with opened(host) as bench:
        first = rows(bench).row
        assert first is not None
        for order in ("p99", "p50", "max", "tasks", "total"):
            await bench.press("o")
            assert f"by {order}" in bench.text
        totals = [row["total_ns"] for row in rows(bench).page.rows]
        assert totals == sorted(totals, reverse=True)
        await bench.press("enter")
        assert bench.app.current_mode == "tasks"
        assert bench.app.selection.task_class == first["class"]
        assert {row["class"] for row in rows(bench).page.rows} == {first["class"]}
        lengths = [row["exec_ns"] for row in rows(bench).page.rows]
        assert lengths == sorted(lengths, reverse=True)


async def test_s_shows_the_sql_and_takes_it_along(host: Path) -> None:
    async with opened(host, size=(120, 50)) as bench:
        await bench.press("s")
        assert "overview.epochs" in bench.text
        assert "FROM coverage" in bench.text
        await bench.press("n")
        assert "overview.classes" in bench.text
        await bench.press("p")
        await bench.press("n", "enter")
        assert bench.app.current_mode == "sql"
        assert "missing_rows" in bench.widget(Editor).text
        await bench.press("f5")
        assert "28 rows" in bench.text


async def test_timeline_zooms_pans_and_moves(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("2")
        lanes: Lanes = bench.widget(Lanes)
        whole = lanes.view
        assert whole is not None
        await bench.press("right", "right", "right", "down")
        assert (lanes.column, lanes.row) == (3, 1)
        t = whole.time_of(3)
        await bench.press("plus")
        assert lanes.view is not None
        assert lanes.view.bits == whole.bits - 1
        assert lanes.view.time_of(3) <= t + whole.cell_ns
        await bench.press("equals_sign", "minus", "minus")
        assert lanes.view.bits == whole.bits
        first = lanes.view.first
        await bench.press("l")
        assert lanes.view.first == first + lanes.view.width // 2
        await bench.press("h")
        assert lanes.view.first == first
        await bench.press("home")
        assert lanes.view.time_of(lanes.column) <= (bench.app.info.t_begin or 0)  # type: ignore[union-attr]
        await bench.press("end")
        assert lanes.view.end >= (bench.app.info.t_end or 0)  # type: ignore[union-attr]
        await bench.press("f")
        assert lanes.view == whole
        await bench.press("pagedown")
        assert lanes.row == len(lanes.ids) - 1
        await bench.press("pageup", "up", "k")
        assert lanes.row == 0
        await bench.press("j")
        assert lanes.row == 1


async def test_an_interval_is_followed_by_every_screen_until_c(host: Path) -> None:
    async with opened(host, size=(120, 40)) as bench:
        await bench.press("3")
        everything = rows(bench).page.rows
        await bench.press("2", *["right"] * 10, "space")
        assert bench.widget(Lanes).mark is not None
        await bench.press(*["right"] * 4, "space")
        interval = bench.app.selection.interval
        assert interval is not None
        begin, end = interval
        await bench.press("3")
        some = rows(bench).page.rows
        assert some
        assert some != everything
        assert all(row["start"] < end and row["complete"] >= begin for row in some)
        await bench.press("1")
        told = sum(row["tasks"]["low"] for row in rows(bench).page.rows)
        await bench.press("6", "f5")
        assert bench.app.screens_by_key["sql"]._asked["sql.result"].window == interval
        await bench.press("escape", "4")
        assert all(row["arrival"] < end for row in rows(bench).page.rows)
        await bench.press("2", "i")
        assert bench.widget(Lanes).view.begin <= begin
        await bench.press("c", "1")
        assert bench.app.selection.is_all
        assert sum(row["tasks"]["low"] for row in rows(bench).page.rows) > told


async def test_timeline_picks_a_worker_and_its_tasks(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("2", "down", "down", "w")
        assert bench.app.selection.worker == 2
        await bench.press("w")
        assert bench.app.selection.worker is None
        await bench.press(*["right"] * 6, "enter")
        assert bench.app.current_mode == "tasks"
        assert bench.app.selection.interval is not None
        assert {row["worker"] for row in rows(bench).page.rows} <= {2}


async def test_timeline_goes_to_losses(trace_of: object, host: Path) -> None:
    lossy: Path = trace_of("lossy")  # type: ignore[operator]
    async with opened(lossy) as bench:
        await bench.press("2")
        assert "loss !" in bench.text
        await bench.press("x")
        assert "queue_full" in bench.lines[-2]
        seen = set()
        for _ in bench.widget(Lanes).lost:
            seen.add(bench.lines[-2])
            await bench.press("x")
        assert len(seen) > 1
        assert bench.lines[-2] in seen
    async with opened(host) as bench:
        await bench.press("2", "x")
        assert "no loss is known here" in bench.text
        await bench.press("i")
        assert "no interval is selected" in bench.text


async def test_tasks_filter_sort_and_page(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("3")
        assert "tasks 1 to 200 of >200" in bench.text
        await bench.press("right_square_bracket")
        assert "tasks 201 to 400" in bench.text
        await bench.press("left_square_bracket", "left_square_bracket")
        assert "tasks 1 to 200" in bench.text
        for order in ("exec", "queue", "complete", "class", "worker", "start"):
            await bench.press("o")
            assert f"by {order}" in bench.text
        await bench.press("slash")
        await bench.type("attn worker=1")
        await bench.press("enter")
        assert {row["worker"] for row in rows(bench).page.rows} == {1}
        assert all("attn" in row["class"] for row in rows(bench).page.rows)
        await bench.press("slash", *["backspace"] * 20)
        await bench.type("worker=x")
        await bench.press("enter")
        assert "cannot filter: 'x' is no number" in bench.text
        await bench.press("slash", "escape")
        assert bench.app.current_mode == "tasks"


async def test_a_task_is_followed_to_its_dependency_its_producer_and_its_worker(host: Path) -> None:
    async with opened(host, size=(110, 40)) as bench:
        await bench.press("3", "slash")
        await bench.type("qkv step=3")
        await bench.press("enter", "down", "down")
        table = rows(bench)
        here = table.row
        assert here is not None
        assert "waited last for" in bench.text
        await bench.press("d")
        there = table.row
        assert there is not None
        assert there["complete"] <= here["start"]
        assert f"released by {there['task'] >> 32}:{there['task'] & 0xFFFFFFFF}" not in bench.text
        await bench.press("b")
        assert table.row == here
        await bench.press("p")
        assert "producers of" in bench.text
        assert there["task"] in {row["task"] for row in table.page.rows}
        await bench.press("backspace")
        assert table.row == here
        await bench.press("b")
        assert "nothing to go back to" in bench.text
        await bench.press("x")
        assert bench.app.selection.task_class == here["class"]
        await bench.press("x")
        assert bench.app.selection.task_class is None
        table.find("task", here["task"])
        await bench.press("w")
        assert bench.app.current_mode == "timeline"
        assert bench.app.selection.worker == here["worker"]
        assert bench.app.selection.interval == (here["start"], here["complete"] + 1)


async def test_enter_on_a_task_selects_its_time(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("3", "down", "enter")
        assert bench.app.selection.interval is not None
        await bench.press("end", "home", "pagedown", "pageup", "left", "right")
        assert bench.app.current_mode == "tasks"


async def test_requests_sort_select_and_lead_on(host: Path) -> None:
    async with opened(host, size=(110, 40)) as bench:
        await bench.press("4")
        for order in ("ttft", "per_token", "total", "queued", "tokens", "arrival"):
            await bench.press("o")
            assert f"by {order}" in bench.text
        await bench.press("down", "x")
        chosen = rows(bench).row
        assert chosen is not None
        assert bench.app.selection.request == chosen["request"]
        await bench.press("x", "right_square_bracket", "left_square_bracket")
        assert bench.app.selection.request is None
        rows(bench).find("request", chosen["request"])
        await bench.press("enter")
        assert bench.app.current_mode == "tasks"
        assert rows(bench).page.rows
        await bench.press("4", "w")
        assert bench.app.current_mode == "timeline"
        assert bench.app.selection.interval is not None


async def test_now_shows_the_last_word_of_a_recording(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("5")
        assert "no live engine" in bench.text
        assert len(rows(bench).page.rows) == 6
        await bench.press("space", "o", "space")
        worker = rows(bench).row["worker"]  # type: ignore[index]
        await bench.press("enter")
        assert (bench.app.current_mode, bench.app.selection.worker) == ("timeline", worker)


async def test_sql_completes_runs_remembers_and_exports(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(host, size=(110, 40), history=tmp_path / "history.jsonl") as bench:
        await bench.press("6")
        editor: Editor = bench.widget(Editor)
        editor.text = ""
        await bench.type("select task from ta")
        await bench.press("tab")
        assert editor.text == "select task from task"
        assert "task_classes" in bench.text
        await bench.press("tab")
        assert editor.text == "select task from tasks"
        await bench.press("f5")
        assert ">1,000 rows: the first 1,000 are shown" in bench.text
        editor.text = "select 1 as x"
        await bench.press("ctrl+j")
        assert "1 row in" in bench.text
        await bench.press("ctrl+up")
        assert editor.text == "select task from tasks"
        await bench.press("ctrl+down", "ctrl+down")
        assert editor.text == "select 1 as x"
        await bench.press("ctrl+p", "f2")
        assert "the answer below is of another query: f5 runs this one" in bench.text
        await bench.press("f5", "f2", "enter")
        assert "wrote 4,020 rows to answer.csv" in bench.text
        assert len((tmp_path / "answer.csv").read_text().splitlines()) == 4_021
        await bench.press("ctrl+s", "enter")
        assert "cannot write answer.csv: it exists" in bench.text
        await bench.press(*["backspace"] * 4)
        assert "cannot write" not in bench.text
        await bench.type(".xls")
        await bench.press("enter")
        assert ".xls is no format" in bench.text
        await bench.press("escape")
        assert "no format" not in bench.text
        await bench.press("escape")
        assert bench.widget(Rows).has_focus
        await bench.press("e")
        assert editor.has_focus
        await bench.press("ctrl+r")
        assert ">1,000 rows" in bench.text


async def test_sql_errors_are_one_line_and_the_answer_stays(host: Path) -> None:
    async with opened(host, size=(110, 40)) as bench:
        await bench.press("6", "f5")
        editor: Editor = bench.widget(Editor)
        for sql, why in (
            ("SELECT nothing FROM tasks", "nothing"),
            ("DROP TABLE tasks", "must be a SELECT"),
            ("SELECT 1; SELECT 2", "refused"),
            ("COPY (SELECT 1) TO 'x'", "refused"),
            ("", "there is nothing to run"),
        ):
            editor.text = sql
            await bench.press("f5")
            assert why in bench.status, sql
            assert "\n" not in bench.status
            assert "28 rows" in bench.text
            assert not sql or "of a query before: 28 rows" in bench.text
        editor.text = "SELECT 1 AS fine"
        await bench.press("f5")
        assert bench.lines[-2] == ""


async def test_q_quits(host: Path) -> None:
    async with opened(host) as bench:
        await bench.press("ctrl+r")
        await bench.pilot.press("q")
        await bench.pilot.pause()
    assert not bench.app.is_running


async def test_leaving_a_screen_lets_go_of_its_questions(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Overview still waits for holds up no other screen, and is asked again when it is shown again."""
    slow = "SELECT count(*) AS class FROM range(10000000) a, range(1000000) b WHERE a.range % 3 <> b.range % 5"
    with monkeypatch.context() as patch:
        patch.setattr(queries, "SLOWEST", slow)
        app = Megascope(Source(trace=host), threads=1)
        async with app.run_test(size=(80, 24)) as pilot:
            bench = Driven(app, pilot)
            await bench.until("events by epoch: ")
            assert app.database.busy
            await pilot.press("3")
            await bench.until("tasks 1 to ")
            await bench.settle()
            patch.undo()
            await bench.press("1")
            assert rows(bench).page.rows


async def test_a_dialog_keeps_what_is_asked(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of keys that is shown above a screen is no other screen: answers still come."""
    release = Event()
    answer = Database._answer

    def late(self: Database, number: int, question: Question) -> Posted:
        if question.key == "overview.classes":
            release.wait(PATIENCE_S)
        return answer(self, number, question)

    monkeypatch.setattr(Database, "_answer", late)
    app = Megascope(Source(trace=host), threads=1)
    async with app.run_test(size=(80, 24)) as pilot:
        bench = Driven(app, pilot)
        await bench.until("events by epoch: ")
        await pilot.press("question_mark")
        await bench.until("keys: Overview")
        release.set()
        await bench.settle()
        await bench.press("escape")
        assert rows(bench).page.rows
