"""The Overview says of classes what the report says of them, and where the truth lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tui_driver import opened

from megascope.analyze.report import ask
from megascope.analyze.session import Session
from megascope.tui import overview, queries
from megascope.tui.model import Selection
from megascope.tui.rows import Rows
from megascope.tui.times import count, duration

SHOWN = {"tasks": "tasks", "exec_p50": "p50", "exec_p99": "p99"}
"""Columns of the report and the Overview's of the same."""

Traces = Callable[[str], Path]


def report(session: Session) -> dict[str, dict[str, Any]]:
    """The report's bounds, by class."""
    return {row["class"]: row for row in ask(session, "classes").rows.to_pylist()}


def classes(session: Session, selection: Selection | None = None) -> dict[str, dict[str, Any]]:
    """The Overview's, by class."""
    with session.run(queries.slowest(selection or Selection(), "total")) as result:
        return {row["class"]: row for row in result.read_all().to_pylist()}


@pytest.mark.parametrize("name", ["host", "lossy", "h200", "h200-experts"])
@pytest.mark.parametrize("share", [(0.0, 1.0), (0.25, 0.5)], ids=["whole", "interval"])
def test_the_bounds_are_those_of_the_report(name: str, share: tuple[float, float], trace_of: Traces) -> None:
    with Session.open(trace_of(name), threads=1) as session:
        begin, end = session.span() or (0, 0)
        if share != (0.0, 1.0):
            session.window(*(begin + round((end - begin) * s) for s in share))
        said, shown = report(session), classes(session)
        # One whose tasks have only begun in the window is in the report for its queue.
        assert set(shown) == {name for name, row in said.items() if row["tasks"]["low"]}
        for key, row in shown.items():
            assert {there: row[here] for there, here in SHOWN.items()} == {there: said[key][there] for there in SHOWN}
            assert row["total_ns"] == pytest.approx((said[key]["exec_ms"] or 0) * 1e6)


def test_without_an_account_of_what_is_missing_what_was_observed_is_called_so(trace_of: Traces) -> None:
    with Session.open(trace_of("unsealed"), threads=1) as session:
        said, shown = report(session), classes(session)
        assert {key: row["tasks"] for key, row in shown.items()} == {key: row["tasks"] for key, row in said.items()}
        for row in shown.values():
            assert not row["known"]
            assert row["tasks"]["high"] is None
            assert row["p50"]["low"] == row["p50"]["high"]


@pytest.mark.parametrize("selection", [Selection(), Selection(worker=1)], ids=["all", "worker"])
def test_the_truth_lies_in_the_bounds(selection: Selection, trace_of: Traces) -> None:
    """The recording with losses is of the same run as the one without: virtual time."""
    with Session.open(trace_of("host"), threads=1) as session:
        truth = classes(session, selection)
    with Session.open(trace_of("lossy"), threads=1) as session:
        shown = classes(session, selection)
    assert len(truth) > 20
    assert set(shown) == set(truth)
    low, true_low = (sum(row["tasks"]["low"] for row in rows.values()) for rows in (shown, truth))
    assert low < true_low
    for key, row in shown.items():
        true = truth[key]
        assert true["tasks"]["low"] == true["tasks"]["high"]
        assert row["tasks"]["low"] <= true["tasks"]["low"] <= row["tasks"]["high"]
        assert row["total_ns"] <= true["total_ns"]
        assert row["max_ns"] <= true["max_ns"]
        for name in ("p50", "p99"):
            bounds, value = row[name], true[name]["low"]
            if bounds["refused"] or true[name]["refused"]:
                continue
            assert bounds["low_open"] or bounds["low"] <= value
            assert bounds["high_open"] or value <= bounds["high"]


@pytest.mark.asyncio
async def test_every_screen_gives_a_class_the_same_bounds(trace_of: Traces) -> None:
    """Overview, and Monitors by replay, as the report."""
    trace = trace_of("lossy")
    with Session.open(trace, threads=1) as session:
        said = report(session)
    async with opened(trace, size=(110, 60)) as bench:
        for cells in bench.widget(Rows).page.cells:
            tasks, p50 = said[cells[0]]["tasks"], said[cells[0]]["exec_p50"]
            assert cells[1] == f"{count(tasks['low'])} – {count(tasks['high'])}"
            if not p50["low_open"] and not p50["high_open"]:
                assert cells[3] == f"{duration(round(p50['low']))} – {duration(round(p50['high']))}"
        await bench.press("7", "slash")
        bench.app.screen.query_one("#query").put("complete { @n[class] = count(); }")  # type: ignore[attr-defined]
        await bench.press("enter")
        await bench.until("replayed query over")
        tasks = said["l00.gate_up"]["tasks"]
        await bench.until(f"{count(tasks['low'])} – {count(tasks['high'])}")
        shown = {cells[0]: cells for cells in bench.widget(Rows, "#map").page.cells}
        assert len(shown) > 20
        for name, cells in shown.items():
            tasks = said[name]["tasks"]
            assert f"{count(tasks['low'])} – {count(tasks['high'])}" in cells


def test_signs_are_explained_where_they_are_used() -> None:
    bounds = {"low": 5.0, "high": 9.0, "low_open": False, "high_open": False, "observed": 4, "refused": None}
    row = {
        "class": "a", "task_class": 1, "selection": "all", "known": True, "tasks": {"low": 4, "high": 6},
        "total_ns": 30, "p50": bounds, "p99": bounds | {"refused": "4 observed are too few"}, "max_ns": 9,
    }  # fmt: skip

    def cells(**changed: Any) -> tuple[str, ...]:
        return overview.cells_of(row | changed)

    assert cells() == ("a", "4 – 6", "≥ 30 ns", "5 ns – 9 ns", "too few", "≥ 9 ns")
    assert cells(tasks={"low": 4, "high": 4}, p50=bounds | {"high": 5.0})[1:4] == ("4", "30 ns", "5 ns")
    assert cells(p50=bounds | {"high_open": True})[3] == "≥ 5 ns"
    assert cells(p50=bounds | {"low_open": True})[3] == "≤ 9 ns"
    assert cells(p50=bounds | {"low_open": True, "high_open": True})[3] == "unknown"
    unknown = {"known": False, "tasks": {"low": 4, "high": None}}
    assert cells(**unknown)[1:4] == ("4+", "≥ 30 ns", "~5 ns – 9 ns")
    partial = unknown | {"selection": "sampled(1/8)"}
    assert cells(**partial)[1:] == ("4+", "≥ 30 ns", "–", "–", "≥ 9 ns")
    assert cells(**{"class": None})[0] == "class 1"
    assert overview.about([row]) == ""
    assert "how much is missing is unknown" in overview.about([row | unknown])
    assert overview.about([row | partial]) == "; –: rows sampled(1/8) are no population"
