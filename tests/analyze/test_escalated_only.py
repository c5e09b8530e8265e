"""A trace that has only the rows that a program chose: no report, view or macro makes a distribution of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megascope.analyze.catalogue import views
from megascope.analyze.macro import macros
from megascope.analyze.report import ask, reports
from megascope.analyze.report_text import report_text
from megascope.analyze.session import Session
from megascope.capture import attaching
from megascope.capture.programs.execution import Limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture" / "engines"))
from host_runs import SHAPES
from live_runs import record

QUERY = """
    complete /exec_ns > 2us/ { emit(); } ready, assign, start /task % 3 == 0/ { emit(); }
    wait, resume, send, receive, request, step, release /t % 2 == 0/ { emit(); }
"""
SELECTION = "escalated(picky)"
TOLD = {"trace", "coverage", "loss", "now", "intervals", "programs", "hooks", "loss_kinds", "marks"}
"""Views of what was recorded, and how; what the engine told has no selection either: these are its side tables."""
SIDE = {"task_classes", "dependencies", "workers", "tile_fields", "static_tasks", "task_deps", "request_sets"}
SIDE |= {"step_requests"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    program = attaching.load(QUERY, {}, name="picky", query=True)
    trace = record(tmp_path_factory.mktemp("picky"), SHAPES["dynamic-2-ranks"], [(program, Limits())], raw=False)
    with Session.open(trace, threads=1) as opened:
        yield opened


def rows(session: Session, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = session.run(sql).read_all().to_pylist()
    return found


@pytest.mark.parametrize("name", [r.name for r in reports().values()])
def test_no_report_shows_one(session: Session, name: str) -> None:
    answer = ask(session, name)
    if name not in ("losses", "marks"):
        assert any(f"selection {SELECTION}: rows are no population" in line for line in answer.lines)
    text = report_text(answer, limit=1000)
    for row in answer.rows.to_pylist():
        for column, value in row.items():
            if isinstance(value, dict) and "refused" in value:
                assert value["low"] is value["high"] is None, (name, column)
                assert value["refused"] in (f"{SELECTION} is no population", "nothing was observed")
                assert value["refused"] in text
            elif isinstance(value, dict):
                assert value["high"] is None, (name, column)
        assert row.get("selection", SELECTION) in (SELECTION, None)
        assert row.get("covered") is None
        if name == "workers":
            # Whatever is not known to have been a wait may have been work.
            waits = ("wait_data_ms", "wait_communication_ms", "wait_other_ms", "idle_ms")
            time = row["busy_ms"] + row["other_ms"] + sum(row[w] for w in waits)
            assert row["busy_high"] == pytest.approx((row["busy_ms"] + row["other_ms"]) / time)
        assert not row.get("told", False) or name == "steps"
    if name in ("classes", "waits"):
        assert f"{SELECTION} is no population" in text


def test_the_overview_counts_what_there_is_at_least(session: Session) -> None:
    found = {(r["section"], r["item"]): r["value"] for r in ask(session, "overview").rows.to_pylist()}
    assert found["selection", "picky"] == SELECTION
    assert found["coverage", "picky"].startswith("100.00 %: ")
    assert found["coverage", "picky"].endswith(" rows written")
    assert found["work", "tasks"] == "0 or more"
    assert found["work", "steps"].startswith("≥ ")
    counted = [value for (section, _), value in found.items() if section in ("classes", "waits")]
    assert counted
    assert all(value.startswith("≥ ") for value in counted)


@pytest.mark.parametrize("name", views())
def test_every_view_says_what_its_rows_are(session: Session, name: str) -> None:
    columns = {c.name for c in views()[name].columns}
    if name in TOLD | SIDE - {"workers"}:
        return
    assert "selection" in columns
    found = rows(session, f'SELECT DISTINCT selection FROM "{name}"')
    assert [r["selection"] for r in found] in ([SELECTION], []), name
    assert any(SELECTION in line for line in session.coverage_lines([name]))
    if "covered" in columns:
        assert rows(session, f'SELECT count(*) AS n FROM "{name}" WHERE covered IS NOT NULL') == [{"n": 0}]


def test_macros_bound_nothing(session: Session) -> None:
    """How many are missing is not known without a recorder: bounds are open on both sides, counts have no high one."""
    hooks = ("ready", "assign", "start", "complete", "wait", "resume", "request", "step")
    assert [r for h in hooks for r in rows(session, f"SELECT missing_rows('{h}', NULL, NULL) AS n")] == [
        {"n": None} for _ in hooks
    ]
    assert rows(session, "SELECT covered(NULL, NULL) AS a, covered(window_begin(), window_end()) AS b") == [
        {"a": None, "b": None}
    ]
    lost = "missing_rows('complete', NULL, NULL)"
    counted = "list({'value': exec_ns, 'upto': upto} ORDER BY upto)"
    for bounds in (
        f"quantile_bounds(list(exec_ns), 0.5, {lost} / count(*))",
        f"counted_bounds({counted}, 0.5, {lost} / 1)",
    ):
        (row,) = rows(
            session,
            f"SELECT {bounds} AS b, min(exec_ns) AS low, max(exec_ns) AS high FROM "
            "(SELECT exec_ns, row_number() OVER (ORDER BY exec_ns) AS upto FROM tasks WHERE exec_ns IS NOT NULL)",
        )
        assert (row["b"]["low_open"], row["b"]["high_open"]) == (True, True)
        assert (row["b"]["low"], row["b"]["high"]) == (row["low"], row["high"])
    (row,) = rows(session, f"SELECT count_bounds(count(*), count(*) + {lost}) AS b FROM tasks")
    assert row["b"]["high"] is None
    (row,) = rows(session, "SELECT no_population('escalated(x)') AS b")
    assert row["b"]["refused"] == "escalated(x) is no population"


def test_macros_were_all_looked_at() -> None:
    """A new one has to be looked at here too, if it is of bounds or quantiles."""
    bounding = {
        n for n in macros() if "bounds" in n or "quantile" in n or n in ("missing_rows", "covered", "no_population")
    }
    assert bounding == {
        *("missing_rows", "covered", "no_population", "count_bounds", "quantile_bounds", "counted_bounds"),
        # Of maps, which hold all that a program observed; of ranks.
        *("hist_bounds", "hist_quantile", "quantile_ranks"),
    }
