"""The parts below the screens: times, filters, viewports, cells, completion, history, pages, SQL literals."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.analyze.session import Session
from megascope.store.errors import Usage
from megascope.store.tables import DEP_CLASSES
from megascope.tui import queries
from megascope.tui.cells import GLYPHS, Cell, Cells, cells_of, runs, style_of
from megascope.tui.completion import complete
from megascope.tui.filters import conditions
from megascope.tui.history import MOST, History
from megascope.tui.literals import Clause, fill, where
from megascope.tui.map_pages import page_of
from megascope.tui.map_questions import SPANS, MapInfo, question
from megascope.tui.model import TraceInfo
from megascope.tui.page import page_of_all
from megascope.tui.times import count, duration, moment, share
from megascope.tui.trust import block, line, trust_of
from megascope.tui.viewport import MOST_BITS, Viewport


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (45_678, "45.7 µs"), (1_234_567_890, "1.23 s"), (None, "–")],
)
def test_durations(ns: int | None, text: str) -> None:
    assert duration(ns) == text


def test_moments_are_as_exact_as_their_step() -> None:
    assert moment(12_345_678) == "12.345678 ms"
    assert moment(-40_000, 100_000) == "0.0 ms"
    assert moment(12_345_678, 1_000) == "12.345 ms" or moment(12_345_678, 1_000) == "12.346 ms"
    assert moment(10_000_000_000, 1_000_000) == "10.000 s"


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_share_is_100_only_where_nothing_is_missing(part: int, whole: int) -> None:
    part = min(part, whole)
    assert (share(part, whole) == "100 %") == (part == whole)


def test_what_events_stand_for_is_told_of_the_programs_that_emitted_them() -> None:
    """Monitors that only fill maps see events again: added up, a trace would seem to hold more than it does."""
    counts = {"lost": 0, "refused": 0, "not_written": 0, "open": 0}
    recorder = counts | {"program": "recorder", "selection": "all", "eligible": 100, "emitted": 100}
    monitor = counts | {"program": "latency", "selection": "escalated(latency)", "eligible": 60, "emitted": 0}
    slow = counts | {"program": "slow", "selection": "escalated(slow)", "eligible": 50, "emitted": 5}
    for programs, selections, eligible in (
        ([monitor, recorder, slow], ["all"], 100),
        ([monitor, slow], ["escalated(slow)"], 50),
        ([monitor], ["escalated(latency)"], 60),
        ([], [], 0),
    ):
        told = trust_of(programs, [])
        assert (told.selections, told.total("eligible")) == (selections, eligible)


def test_the_header_counts_what_was_lost_on_the_way_into_the_trace() -> None:
    """As the lines under answers in SQL do; of maps alone there are no rows to be covered."""
    row = {"hook": "complete", "lost": 10, "refused": 0, "not_written": 0, "open": 0, "eligible": 1000, "emitted": 990}
    whole, alone = row | {"program": "recorder", "selection": "all"}, row | {"program": "latency", "emitted": 0}
    alone["selection"] = "escalated(latency)"
    losses = [
        {"kind": kind, "severity": "info", "count": n, "unit": unit, "place": "", "todo": "raise it"}
        for kind, n, unit in (("retired", 300, "rows"), ("disk_budget", 200, "rows"), ("spool_tail", 9, "bytes of now"))
    ]
    about = TraceInfo("t", "sealed", "host", "virtual", 1, 0, 9, 490, "ended", 0, ())
    trust = trust_of([whole], losses)
    assert trust.missing == 10 + 300 + 200
    assert "coverage 49 % of 1,000 events · retired 300 rows" in line(trust, about).plain
    assert "no loss known" not in line(trust, about).plain
    assert line(trust_of([whole | {"lost": 0}], []), about).plain.endswith(
        "coverage 100 % of 1,000 events · no loss known"
    )
    assert "complete at every hook" not in block(trust_of([whole | {"lost": 0}], losses), about, 80, 9).plain
    assert "complete at every hook" in block(trust_of([whole | {"lost": 0}], []), about, 80, 9).plain
    said = line(trust_of([alone], []), about).plain
    assert said.startswith("no rows: maps alone, of latency")
    assert "%" not in said


def test_counts() -> None:
    assert [count(n) for n in (0, 12_345, 1_234_567, None)] == ["0", "12,345", "1.23 M", "–"]


def test_filters_become_conditions() -> None:
    assert conditions("attn worker=3 exec>20us queue<=1.5ms missing") == [
        "contains(lower(class), 'attn')",
        "worker = 3",
        "exec_ns > 20000",
        "queue_ns <= 1500000",
        "missing <> 0",
    ]
    assert conditions("rank=1") == ["rank = 1"]
    assert conditions("task=2:7") == [f"task = {2 << 32 | 7}"]
    assert conditions("") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("worker=x", "'x' is no number"),
        ("exec>20", None),
        ("exec>20m", "no duration"),
        ("wrkr=3", "tasks have no 'wrkr'"),
        ("a'b", "no name and no comparison"),
        ("class>x", "compared with ="),
        ("task=7", "write task=iteration:index"),
        ("step=99999999999999999999", "no number"),
    ],
)
def test_filters_that_are_none_say_why(text: str, why: str | None) -> None:
    if why is None:
        assert conditions(text)
        return
    with pytest.raises(Usage, match=why) as error:
        conditions(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=40))
def test_no_filter_and_no_name_leaves_its_place_in_the_sql(text: str) -> None:
    literal = fill("{x}", x=text)
    assert literal[0] == literal[-1] == "'"
    assert "'" not in literal[1:-1].replace("''", "")
    try:
        told = conditions(text)
    except Usage:
        return
    outside = [re.sub(r"'(?:[^']|'')*'", "", c) for c in told]
    assert all(";" not in c and "--" not in c and "'" not in c for c in outside)


def test_a_comment_sign_is_text_like_any_other() -> None:
    assert conditions("--") == ["contains(lower(class), '--')"]


def test_all_screens_sql_runs_on_a_real_trace(host: Path) -> None:
    """Each question is one that people may ask with megascope sql, too."""
    order = Clause("task")
    asked = [
        fill(queries.TRACE),
        fill(queries.TRUST),
        fill(queries.LOSSES),
        fill(queries.EPOCHS, first=0, epochs=9, bars=3),
        fill(queries.SLOWEST, where=where("worker = 1"), order=Clause("total_ns")),
        fill(queries.TASKS, where=where(queries.of_request(1)), order=order, limit=5, offset=0),
        fill(queries.TASK, task=3, rank=0),
        fill(queries.RELEASER, task=3),
        fill(queries.PRODUCERS, iteration=3, dep=2),
        fill(queries.NOW),
        fill(queries.LOST_WHERE, begin=0, end=10**9),
        *(
            queries.timeline(Viewport.fit(1_000_000, 1_000_000 + ns, 60), [0, 1], until=10**9, tasks=tasks)
            for ns in (10_000, 10**9)
            for tasks in (False, True)
        ),
    ]
    with Session.open(host, threads=1) as session:
        for sql in asked:
            with session.run(sql) as result:
                result.read_all()


def test_tiles_and_tasks_draw_the_same_sums(host: Path) -> None:
    """Busy time of each worker in each cell: from tiles and from tasks, to a ns a slice."""
    with Session.open(host, threads=1) as session:
        begin, end = session.span() or (0, 0)
        view = Viewport(16, begin >> 16, ((end - 1) >> 16) - (begin >> 16) + 1)
        answers = []
        for tasks in (False, True):
            with session.run(queries.timeline(view, range(6), until=end, tasks=tasks)) as result:
                rows = result.read_all().to_pylist()
            answers.append({(r["worker"], r["cell"]): r["busy"] for r in rows if r["busy"]})
    assert answers[0] == pytest.approx(answers[1], abs=64)
    assert len(answers[0]) > 20


@given(st.integers(0, 2**61), st.integers(1, 2**50), st.integers(20, 300))
def test_a_fitted_viewport_shows_all_and_hardly_more(begin: int, length: int, width: int) -> None:
    view = Viewport.fit(begin, begin + length, width)
    assert view.begin <= begin
    assert view.end >= begin + length or view.bits == MOST_BITS
    assert view.level is None or view.level <= view.bits


@given(st.integers(0, 2**40), st.integers(6, 40), st.integers(10, 200), st.data())
def test_zooming_keeps_the_time_under_the_cursor(first: int, bits: int, width: int, data: st.DataObject) -> None:
    view = Viewport(bits, first, width)
    column = data.draw(st.integers(0, width - 1))
    t = view.time_of(column)
    for step in (-1, 1):
        zoomed = view.zoom(step, column)
        at = zoomed.time_of(column)
        assert at - zoomed.cell_ns <= t <= at + zoomed.cell_ns


def cells(*given: dict[str, int], width_ns: int = 100) -> Cells:
    """One worker's cells."""
    names = ("busy", *(f"wait_{name}" for name in DEP_CLASSES), "lost")
    rows = [
        {"worker": 7, "cell": i, "top_class": g.get("top_class"), **{n: g.get(n, 0) for n in names}}
        for i, g in enumerate(given)
    ]
    return cells_of(pa.Table.from_pylist(rows), [7], len(given), width_ns, {1: "qkv", 2: "attn", 3: "qkv"})


def test_waits_are_letters_and_tasks_are_blocks_as_high_as_they_are_busy() -> None:
    drawn = cells(
        {"busy": 100, "top_class": 1}, {"busy": 1, "top_class": 1}, {"busy": 100, "top_class": 2},
        {"busy": 100, "top_class": 3}, {"wait_none": 9}, {"wait_data": 9, "busy": 4}, {"wait_communication": 9},
        {"wait_resource": 9}, {"wait_control": 9}, {}, {"busy": 100, "top_class": 1, "lost": 3},
        {"busy": 30, "top_class": 1, "wait_none": 70}, {"busy": 3, "top_class": 1, "wait_none": 90},
    )  # fmt: skip
    (codes,) = drawn.codes
    assert "".join(GLYPHS[c >> 8] for c in codes.tolist()) == "█▁██·dcrk █▂·"
    styles = [style_of(int(c)) for c in codes]
    assert styles[0] == styles[1] == styles[3] != styles[2]
    assert (styles[10].color, styles[10].underline, styles[0].underline) == (styles[0].color, True, False)
    assert drawn.at(7, 5) == Cell(4, (0, 9, 0, 0, 0), -1, 0)
    assert drawn.at(7, 13) is None
    assert drawn.at(8, 0) is None


@given(st.lists(st.integers(0, len(GLYPHS) - 1).flatmap(lambda g: st.tuples(st.just(g), st.integers(0, 30)))))
def test_runs_draw_the_same_in_as_few_pieces_as_there_are_styles_in_a_row(given_cells: list[tuple[int, int]]) -> None:
    codes = np.array([glyph << 8 | low for glyph, low in given_cells], np.int16)
    merged = runs(codes)
    assert "".join(text for text, _ in merged) == "".join(GLYPHS[glyph] for glyph, _ in given_cells)
    assert [s for text, s in merged for _ in text] == [style_of(low) for _, low in given_cells]
    assert len(merged) == sum(a != b for a, b in pairwise([-1, *(low for _, low in given_cells)]))


@pytest.mark.parametrize(
    ("text", "has", "has_not"),
    [
        ("SELECT * FROM ta", "tasks", "task_class"),
        ("SELECT exe| FROM tasks", "exec_ns", "tasks"),
        ("SELECT w.t_| FROM waits AS w", "t_begin", "task"),
        ("sel", "select", "SELECT"),
        ("SELECT quan", "quantile_cont(", "queue"),
        ("SELECT 1 FROM tasks JOIN wa", "waits", "worker"),
    ],
)
def test_completion_knows_the_schema(text: str, has: str, has_not: str) -> None:
    cursor = text.index("|") if "|" in text else len(text)
    found = complete(text.replace("|", ""), cursor)
    assert has in found.words
    assert has_not not in found.words
    assert all(w.startswith(found.common) for w in found.words)


@given(st.text(max_size=60), st.integers(0, 60))
def test_completion_never_fails(text: str, cursor: int) -> None:
    found = complete(text, min(cursor, len(text)))
    assert 0 <= found.start <= len(text)


def test_history_is_kept_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.jsonl"
    history = History(path)
    for i in range(MOST + 5):
        assert history.add(f"SELECT\n{i}") == ""
    assert path.stat().st_mode & 0o777 == 0o600
    again = History(path)
    assert (len(again.queries), again.queries[-1]) == (MOST, f"SELECT\n{MOST + 4}")
    assert again.move(-1, "a draft") == f"SELECT\n{MOST + 4}"
    assert again.move(1, "") == "a draft"
    assert again.move(1, "") is None


@pytest.mark.parametrize("content", ["", "not json\n", json.dumps({"a": 1}) + "\n", "\udcff"])
def test_a_history_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert History(path).queries == []


def test_a_history_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "was not kept" in History(tmp_path / "file" / "history.jsonl").add("SELECT 1")


def test_a_page_shows_names_that_would_command_the_terminal_escaped() -> None:
    page = page_of_all(pa.table({"a\x1b": ["x\x1b[31m", None], "n": [1, 2]}))
    assert page.titles == ("a\\x1b", "n")
    assert page.cells == (("x\\x1b[31m", "1"), ("null", "2"))
    assert page.right == (False, True)


def test_of_an_open_interval_a_map_gives_no_upper_bound() -> None:
    """After a death it is not known what the last interval missed: its counts are of what was seen."""
    info = MapInfo("maps.q_n", "n", "hash", False, ("k",), ("value",), frozenset({2}))
    table = pa.table({"k": [1], "value": [40], "eligible": [50], "missing": [10], "refused": [0]})
    for still_open, told in ((False, "40 – 50"), (True, "40+")):
        held = page_of(info, "count", "", 80, still_open=still_open)(table)
        assert held.page.cells[0][1] == told


def test_two_monitors_that_say_the_same_of_an_epoch_are_two() -> None:
    """And every key's row of one says it again, which is once."""
    con = duckdb.connect()
    con.execute("CREATE SCHEMA maps")
    con.execute(
        "CREATE TABLE maps.q_n AS SELECT 3 AS program, 0 AS rank, NULL::INTEGER AS worker, 2 AS workers, 7 AS epoch, "
        "1 AS epochs, m AS t_begin, 100 + m AS t_end, 10 AS eligible, 8 AS observed, 1 AS refused, key, 4 AS value "
        "FROM range(2) AS m(m), range(5) AS k(key)"
    )
    info = MapInfo("maps.q_n", "n", "hash", False, ("key",), ("value",), frozenset({3}))
    rows = con.sql(question(info, 3, "count", SPANS[0])).fetchall()
    assert [row[1] for row in rows] == [8] * 5
    assert {row[-3:] for row in rows} == {(20, 2 * (10 - 8 + 1), 2)}
