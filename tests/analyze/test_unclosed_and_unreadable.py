"""What is not known is not claimed: behind the last cut of a killed recorder, in parts that cannot be read, in maps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asked_runs
import numpy as np
import pytest
import recordings

from megascope.analyze.report import ask
from megascope.analyze.report_text import report_text
from megascope.analyze.session import Session
from megascope.store import map_streams, tables
from megascope.store.repair import repair

SPEC = f"{asked_runs.SMALL},steps=30"
CUT = 1_400_000
"""Of epochs of 0.2 ms, the first from 1 ms on: two were closed when the recorder was killed."""
ROWS_TO = 1_560_000


def one(session: Session, sql: str) -> Any:
    """The one value of an answer."""
    return session.run(sql).read_all().column(0)[0].as_py()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same virtual time: whole, lossy, killed, and killed and repaired."""
    folder = tmp_path_factory.mktemp("runs")
    found = {name: folder / f"{name}.mscope" for name in ("truth", "lossy", "killed", "repaired")}
    asked_runs.record(found["truth"], SPEC)
    asked_runs.record(found["lossy"], f"{SPEC},lose=0.1")
    asked_runs.record(found["killed"], f"{SPEC},lose=0.1", cut=CUT, rows_to=ROWS_TO)
    shutil.copytree(found["killed"], found["repaired"])
    assert repair(found["repaired"]).state == "sealed"
    return found


def behind(session: Session) -> int:
    """Rows behind the last cut."""
    return int(one(session, f"SELECT count(*) FROM events WHERE t >= {CUT}"))


@pytest.mark.parametrize("name", ["killed", "repaired"])
def test_behind_the_last_cut_nothing_is_bounded(runs: dict[str, Path], name: str) -> None:
    """Before its repair and after it: null where a stretch reaches beyond the cut, a bound that holds before it."""
    with Session.open(runs["truth"], threads=1) as truth, Session.open(runs[name], threads=1) as session:
        assert behind(session) > 0
        for hook in ("complete", "start", "request", "step"):
            assert one(session, f"SELECT missing_rows('{hook}', NULL, NULL)") is None
            assert one(session, f"SELECT missing_rows('{hook}', 0, {CUT})") is None
            missing = one(session, f"SELECT missing_rows('{hook}', 0, {CUT - 1})")
            counted = f"SELECT count(*) FROM events WHERE hook_name = '{hook}' AND t < {CUT}"
            seen, true = one(session, counted), one(truth, counted)
            assert seen <= true <= seen + missing
        assert one(session, f"SELECT covered(0, {CUT - 1})") < 1
        assert one(session, f"SELECT covered(0, {CUT})") is None
        found = {(r["section"], r["item"]): r["value"] for r in ask(session, "overview").rows.to_pylist()}
        assert found["work", "tasks"].endswith(" or more")
        assert found["coverage", "recorder"].startswith("unknown: ")
        for row in ask(session, "classes").rows.to_pylist():
            assert row["tasks"]["high"] is None
            true = one(truth, f"SELECT count(*) FROM tasks WHERE class = '{row['class']}' AND complete < {ROWS_TO}")
            assert row["tasks"]["low"] <= true
        session.window(0, CUT - 1)
        for row in ask(session, "classes").rows.to_pylist():
            true = one(truth, f"SELECT count(*) FROM tasks WHERE class = '{row['class']}' AND complete < {CUT - 1}")
            assert row["tasks"]["low"] <= true <= row["tasks"]["high"]


@pytest.mark.parametrize("name", ["killed", "repaired"])
def test_rows_behind_the_last_cut_are_said(runs: dict[str, Path], name: str) -> None:
    """Coverage is that of the closed intervals, and the line says how many rows lie in none."""
    with Session.open(runs[name], threads=1) as session:
        line, *_ = session.coverage_lines(["events"])
        assert " of closed intervals (" in line
        assert f" · {behind(session):,} rows lie in intervals that nobody closed: what is missing there is" in line
        assert "what came after the last cut" in session.coverage_lines(["coverage"])[0]


def test_a_worker_whose_cut_was_not_told(tmp_path: Path) -> None:
    """The last cut is one that all workers share: one that only some had told leaves the rest of the epoch unknown."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("events", recordings.ring_rows(250))
    flows = [recordings.flow(100, t_begin=i * 1000, t_end=(i + 1) * 1000) for i in range(2)]
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    whole = {"workers": 2, "epochs": 1, "t_end": 1000, "seqs": 100, "dequeued": 100, "closed": True}
    half = whole | {"workers": 1, "epoch": 1, "t_begin": 1000, "t_end": 2000}
    writer.append("intervals", recordings.rows(tables.INTERVALS, whole, half))
    writer.flush()
    writer.close()
    repair(writer.path)
    with Session.open(writer.path, threads=1) as session:
        asked = ("0, 999", "0, 1000", "1500, 1600", "NULL, NULL")
        assert [one(session, f"SELECT missing_rows('start', {a})") for a in asked] == [0, None, None, None]


@pytest.mark.parametrize("reason", ["died", "failed", "truncated", "refused"])
def test_ends_out_of_order(tmp_path: Path, reason: str) -> None:
    """Whatever ended it, without rows behind the cut either: nobody knows what came after."""
    for end, missing in ((reason, None), ("ended", 20)):
        writer = recordings.begin(tmp_path / f"{end}.mscope")
        recordings.fill(writer)
        writer.finish(end)
        with Session.open(writer.path, threads=1) as session:
            assert one(session, "SELECT missing_rows('start', NULL, NULL)") == missing
            assert one(session, "SELECT missing_rows('start', 0, 100)") == 20
            said = "what came after the last cut" in session.coverage_lines(["events"])[0]
            assert said == (end == reason)


def truncated(part: Path) -> None:
    """Cut it short."""
    with part.open("r+b") as file:
        file.truncate(100)


def flipped(part: Path) -> None:
    """Flip a bit in its middle."""
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def damaged(source: Path, folder: Path, stream: str, how: Callable[[Path], None]) -> Path:
    """A copy of a trace of which a part is damaged."""
    path = folder / f"{stream}.mscope"
    shutil.copytree(source, path)
    how(next((path / stream).glob("*.parquet")))
    return path


@pytest.mark.parametrize("how", [truncated, flipped])
@pytest.mark.parametrize("stream", ["events", "tasks", "coverage", "loss"])
def test_what_cannot_be_read_is_missing(
    runs: dict[str, Path], tmp_path: Path, stream: str, how: Callable[[Path], None]
) -> None:
    """No line says 100 %, no count is bounded by what is left, and reports still answer."""
    path = damaged(runs["truth" if stream != "loss" else "lossy"], tmp_path, stream, how)
    with Session.open(path, threads=1) as session:
        line, *_ = session.coverage_lines(["events" if stream == "events" else "tasks"])
        assert "coverage 100 %" not in line
        if stream in ("events", "tasks"):
            assert f" rows of {stream} cannot be read" in line
            found = one(session, "SELECT missing_rows('complete', NULL, NULL)")
            left = f"SELECT count(*) FROM {stream}" + (" WHERE hook_name = 'complete'" if stream == "events" else "")
            with Session.open(runs["truth"], threads=1) as truth:
                assert one(session, left) + found >= one(truth, left) > one(session, left)
        else:
            assert f"coverage unknown: rows of {stream} cannot be read" in line
            assert one(session, "SELECT missing_rows('complete', NULL, NULL)") is None
        shown = {(r["section"], r["item"]): r["value"] for r in ask(session, "overview").rows.to_pylist()}
        assert not shown.get(("coverage", "recorder"), "").startswith("100")


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("how", [truncated, flipped])
def test_reports_answer_without_their_events(
    runs: dict[str, Path], tmp_path: Path, how: Callable[[Path], None], mended: bool
) -> None:
    """Tasks are a table of their own: the window is that of the trace, before its repair and after it."""
    path = damaged(runs["truth"], tmp_path, "events", how)
    if mended:
        repair(path)
    with Session.open(runs["truth"], threads=1) as truth, Session.open(path, threads=1) as session:
        assert session.span() == truth.span()
        mine, theirs = ({r["class"]: r for r in ask(s, "classes").rows.to_pylist()} for s in (session, truth))
        assert mine.keys() == theirs.keys()
        for name, row in mine.items():
            assert row["exec_ms"] == theirs[name]["exec_ms"]
            assert row["tasks"]["low"] == theirs[name]["tasks"]["low"]
        assert "window: the trace has no events" not in report_text(ask(session, "classes"))


def test_maps_alone_are_said_once(tmp_path: Path) -> None:
    """Programs that emitted nothing have no rows to be covered: one line for all views, which names them."""
    programs = [
        {"program": i, "name": name, "selection": f"escalated({name})", "source": "", "hash": ""}
        for i, name in ((2, "latency"), (3, "queues"))
    ]
    nothing = {"emitted": 0, "written": 0}
    flows = [recordings.flow(100, program=p, lost=5, **nothing) for p in (2, 3)]
    writer = recordings.begin(tmp_path / "x.mscope", programs=programs)
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        answer = ask(session, "overview")
        told = [line for line in answer.lines if "no rows" in line]
        assert told == [
            "tasks, waits, requests, steps, trace: "
            "no rows: latency, queues emitted none; what their maps held is the answer"
        ]
        assert not any("population" in line for line in answer.lines)
        assert session.span() == (0, recordings.EPOCH_NS)


def test_requests_that_wait_are_there(runs: dict[str, Path]) -> None:
    """In any window those that had arrived and had not ended, with what is so of their whole lives."""
    with Session.open(runs["truth"], threads=1) as session:
        whole = {r["request"]: r for r in session.run("SELECT * FROM requests").read_all().to_pylist()}
        waiting = [r for r in whole.values() if r["queued_ns"] and r["queued_ns"] > 100]
        assert waiting
        begin, end = session.span() or (0, 0)
        stretches = [(r["arrival"] + 10, r["admitted"] - 10) for r in waiting]
        step = (end - begin) // 7
        for low, high in [*stretches, *((begin + i * step, begin + (i + 1) * step) for i in range(7))]:
            session.window(low, high)
            there = {
                r for r, of in whole.items() if of["arrival"] < high and (of["ended"] is None or of["ended"] >= low)
            }
            found = {r["request"]: r for r in ask(session, "requests").rows.to_pylist()}
            assert found.keys() == there
            for request, row in found.items():
                for column in ("ttft", "queued", "total", "per_token"):
                    ns = whole[request][f"{column}_ns"]
                    assert row[f"{column}_ms"] == (None if ns is None else ns / 1e6)
                assert (row["state"], row["tokens"]) == (whole[request]["state"], whole[request]["tokens"])
        session.window()
        assert {r["request"] for r in ask(session, "requests").rows.to_pylist()} == whole.keys()


def test_whose_end_was_lost_leaves_with_the_next_in_its_slot(tmp_path: Path) -> None:
    """It is there until another request has its slot, and not in every window after."""
    writer = recordings.begin(tmp_path / "x.mscope")
    seen = [(1, 100, 1), (1, 200, 3), (2, 300, 1), (2, 400, 3), (2, 500, 7)]
    request, t, state = np.array([*seen, (0, 900, 0)]).T
    hooks = [10] * len(seen) + [4]
    rows = recordings.ring_rows(6, hook=hooks, request=request, t=t, aux=state, worker=0, seq=np.arange(1, 7))
    writer.append("events", rows)
    told = ({"request": r, "external_id": f"r{r}", "slot": 0, "arrival": a} for r, a in ((1, 50), (2, 250)))
    writer.upsert("requests", recordings.rows(tables.REQUESTS, *told))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        for window, there in (((110, 150), [1]), ((260, 290), [1, 2]), ((350, 380), [2]), ((510, 600), [])):
            session.window(*window)
            assert sorted(session.run("SELECT request FROM requests").read_all()["request"].to_pylist()) == there


def test_steps_keep_their_length_in_a_window(runs: dict[str, Path]) -> None:
    """One that a window cuts is as long as it is, and told."""
    with Session.open(runs["truth"], threads=1) as session:
        whole = {r["step"]: r for r in session.run("SELECT * FROM steps").read_all().to_pylist()}
        begin, end = session.span() or (0, 0)
        low, high = begin + (end - begin) // 3, begin + (end - begin) // 2
        session.window(low, high)
        found = session.run("SELECT * FROM steps").read_all().to_pylist()
        assert {r["step"] for r in found} == {s for s, r in whole.items() if r["t_begin"] < high and r["t_end"] >= low}
        assert [(r["ns"], r["told"]) for r in found] == [
            (whole[r["step"]]["ns"], whole[r["step"]]["told"]) for r in found
        ]


@pytest.mark.parametrize("stream", ["coverage", "maps.lat_n", "events"])
def test_what_repair_puts_aside_is_told_of_its_table(tmp_path: Path, stream: str) -> None:
    """Rows of coverage or of a map that are gone are no event rows: each answer says whose they were."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    table = map_streams.table("lat_n", "a map", [tables.Column("key", "i64", "key")])
    writer.declare(table)
    writer.append(table.name, recordings.rows(table, *({"program": 1, "key": k, "epochs": 1} for k in range(3))))
    writer.finish("ended")
    (part,) = (writer.path / stream.replace(".", "/")).glob("*.parquet")
    truncated(part)
    assert not [f for f in repair(writer.path).findings if f.severity == "damaged"]
    rows = {"coverage": 1, "maps.lat_n": 3, "events": 240}[stream]
    with Session.open(writer.path, threads=1) as session:
        unit = one(session, "SELECT unit FROM loss WHERE kind = 'part_unreadable'")
        facts = {(r["section"], r["item"]): r["value"] for r in ask(session, "overview").rows.to_pylist()}
        of_events, of_map, of_coverage = session.coverage_lines(["events", "maps.lat_n", "coverage"])
        missing = one(session, "SELECT missing_rows('start', NULL, NULL)")
    assert unit == f"rows of {stream}"
    assert facts["loss", "part_unreadable"].startswith(f"{rows} rows of {stream} (damaged)")
    assert f"damaged: part_unreadable {rows} rows of {stream}" in of_events
    match stream:
        case "coverage":
            assert "coverage unknown: rows of coverage are gone" in of_events
            assert "coverage unknown: rows of coverage are gone" in of_map
            assert of_coverage.startswith("coverage: 0 rows closed, 0 open; rows of coverage are gone")
            assert missing is None
        case "maps.lat_n":
            assert (
                "coverage 92.30 % of the whole trace (observed 240 of 260 eligible; lost 20 in worker queues"
                in of_events
            )
            assert of_map.startswith("maps.lat_n: no rows · coverage unknown: rows of maps.lat_n are gone")
            assert missing == 20
        case "events":
            assert "0 in the ring, 240 part_unreadable)" in of_events
            assert "coverage 92.30 % while it was attached" in of_map
            assert missing is None
