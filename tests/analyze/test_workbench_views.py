"""Tasks, waits, requests, steps, workers, queues, rounds and bubbles: against what plain Python makes of the events."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asked_runs
import numpy as np
import pytest
import recordings

from megascope.analyze.session import Session
from megascope.store import derived_rest, tables

SETS = tables.REQUEST_SET_BIT


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of the host engine: dynamic, static, and two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    specs = {
        "dynamic": "steps=40,queue=4",
        "static": "steps=30,schedule=static",
        "ranks": "steps=20,ranks=2,preempt=0.1",
    }
    for name, spec in specs.items():
        asked_runs.record(folder / name, f"{asked_runs.SMALL},{spec}")
    return {name: folder / name for name in specs}


@pytest.fixture(scope="module", params=["dynamic", "static", "ranks"])
def run(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Iterator[Session]:
    """A session over each."""
    with Session.open(paths[request.param], threads=1) as opened:
        yield opened


def rows(session: Session, sql: str) -> list[dict[str, Any]]:
    """All rows of a query."""
    return session.run(sql).read_all().to_pylist()


def members(session: Session) -> dict[int, set[int]]:
    """Requests of an event's `request`, set or single."""
    out: dict[int, set[int]] = defaultdict(set)
    for row in rows(session, "SELECT * FROM request_sets"):
        out[row["request_set"] | SETS].add(row["request"])
    return out


def of(sets: dict[int, set[int]], request: int) -> set[int]:
    """Whom work for `request` is for."""
    return sets[request] if request & SETS else {request} if request else set()


def test_tasks_are_the_events(run: Session) -> None:
    """Every complete is a task's; names, shared and selection are those of the events."""
    tasks = rows(run, "SELECT * FROM tasks")
    events = rows(run, "SELECT * FROM events WHERE hook_name IN ('start', 'complete')")
    assert {t["task"] for t in tasks} == {e["task"] for e in events}
    by_task = {t["task"]: t for t in tasks}
    for e in events:
        task = by_task[e["task"]]
        assert task[e["hook_name"]] == e["t"]
        assert (task["class"], task["worker"], task["request"]) == (e["class"], e["worker"], e["request"])
        assert task["shared"] == bool(e["request"] & SETS)
        assert task["selection"] == "all"
    names = {d["id"]: d["name"] for d in rows(run, "SELECT id, name FROM dependencies")}
    assert all(t["dep_name"] == names.get(t["dep"]) for t in tasks)
    assert any(t["dep_name"] for t in tasks)


def test_waits_by_kind(run: Session) -> None:
    """For work without a task in hand, else for what the dependency is."""
    waits = rows(run, "SELECT * FROM waits")
    assert {w["kind"] for w in waits if w["task"] == 0} == {"work"}
    for w in waits:
        if w["task"]:
            assert w["kind"] == tables.DEP_CLASSES[w["dep_class"]]
            assert w["dep_name"]
        assert w["ns"] is None or w["ns"] == w["t_end"] - w["t_begin"]
    resumes = rows(run, "SELECT sum(since_ns)::BIGINT AS ns, count(*) AS n FROM events WHERE hook_name = 'resume'")
    assert sum(w["ns"] or 0 for w in waits) == resumes[0]["ns"]


def test_shared_work_is_every_members(run: Session) -> None:
    """A batch's task is in the view of each of its members, marked, and in none of them twice."""
    sets = members(run)
    expected = {
        (request, t["task"], bool(t["request"] & SETS), len(of(sets, t["request"])))
        for t in rows(run, "SELECT task, request FROM tasks")
        for request in of(sets, t["request"])
    }
    found = rows(run, "SELECT request, task, shared, members FROM request_tasks")
    assert {tuple(row.values()) for row in found} == expected
    assert len(found) == len(expected)
    assert any(shared and n > 1 for _, _, shared, n in expected)


def test_requests(run: Session) -> None:
    """Times of each state, and work alone and shared, summed by hand."""
    sets = members(run)
    states: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for e in rows(
        run, "SELECT t, request, aux & 4294967295 AS state FROM events WHERE hook_name = 'request' ORDER BY t"
    ):
        states[e["request"]].append((e["state"], e["t"]))
    alone: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    shared: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for t in rows(run, "SELECT request, exec_ns, queue_ns FROM tasks"):
        for request in of(sets, t["request"]):
            sums = shared if t["request"] & SETS else alone
            sums[request] = [a + (b or 0) for a, b in zip(sums[request], (1, t["exec_ns"], t["queue_ns"]), strict=True)]
    waited: dict[tuple[int, bool, str], int] = defaultdict(int)
    for w in rows(run, "SELECT request, kind, ns FROM waits WHERE task <> 0 AND ns IS NOT NULL"):
        for request in of(sets, w["request"]):
            waited[request, bool(w["request"] & SETS), w["kind"]] += w["ns"]
    requests = rows(run, "SELECT * FROM requests")
    assert len(requests) == len({r["request"] for r in requests}) > 5
    for r in requests:
        told = states[r["request"]]
        first = dict(reversed(told))
        tokens = [t for state, t in told if state in (3, 4)]
        assert (r["admitted"], r["first_token"]) == (first.get(1), first.get(3))
        assert r["ended"] == first.get(7, first.get(8))
        assert r["tokens"] == len(tokens)
        if r["first_token"]:
            assert r["ttft_ns"] == r["first_token"] - r["arrival"] >= r["queued_ns"] >= 0
        if len(tokens) > 1:
            assert r["per_token_ns"] == (tokens[-1] - tokens[0]) / (len(tokens) - 1)
        assert [r["tasks"], r["exec_ns"], r["queue_ns"]] == alone[r["request"]]
        assert [r["shared_tasks"], r["shared_exec_ns"], r["shared_queue_ns"]] == shared[r["request"]]
        for kind in ("data", "communication", "resource", "control"):
            assert r[f"wait_{kind}_ns"] == waited[r["request"], False, kind]
            assert r[f"shared_wait_{kind}_ns"] == waited[r["request"], True, kind]
        assert (r["selection"], r["covered"]) == ("all", 1.0)
    done = [r for r in requests if r["state"] == "finished"]
    assert done
    assert all(r["total_ns"] == r["ended"] - r["arrival"] for r in done)


def test_steps(run: Session) -> None:
    """From the step events, with the batch that the engine told of."""
    begins = {e["step"]: e["t"] for e in rows(run, "SELECT t, step FROM events WHERE hook_name = 'step' AND flags = 1")}
    ends = {e["step"]: e["t"] for e in rows(run, "SELECT t, step FROM events WHERE hook_name = 'step' AND flags = 2")}
    batch: dict[int, set[int]] = defaultdict(set)
    for m in rows(run, "SELECT * FROM step_requests"):
        for step in range(m["from_step"], m["to_step"] + 1):
            batch[step].add(m["request"])
    execs: dict[int, int] = defaultdict(int)
    for t in rows(run, "SELECT step, exec_ns FROM tasks"):
        execs[t["step"]] += t["exec_ns"]
    steps = rows(run, "SELECT * FROM steps ORDER BY step")
    assert [s["step"] for s in steps] == sorted(begins)
    for s in steps:
        assert (s["t_begin"], s["t_end"], s["told"]) == (begins[s["step"]], ends[s["step"]], True)
        assert s["requests"] == len(batch[s["step"]])
        assert s["exec_ns"] == execs[s["step"]]
        assert s["covered"] == 1.0


def test_workers_account_for_their_time(run: Session) -> None:
    """Tasks and waits of a worker do not overlap, so that its parts fill the time that was looked at."""
    span = run.span()
    assert span is not None
    workers = rows(run, "SELECT * FROM workers")
    busy = {
        r["worker"]: r["ns"] for r in rows(run, "SELECT worker, sum(exec_ns)::BIGINT AS ns FROM tasks GROUP BY worker")
    }
    for w in workers:
        parts = [w[f"{p}_ns"] for p in ("busy", "wait_data", "wait_communication", "wait_resource", "wait_control")]
        assert sum(parts) + w["idle_ns"] + w["other_ns"] == span[1] - span[0]
        assert w["busy_ns"] == busy[w["worker"]]
        assert (w["lost"], w["selection"]) == (0, "all")
    assert sum(w["idle_ns"] for w in workers) > 0


def test_workers_in_a_window(run: Session) -> None:
    """Cut at its ends: windows side by side add up to the whole."""
    span = run.span()
    assert span is not None
    cuts = [span[0], *(span[0] + (span[1] - span[0]) * i // 5 for i in (1, 2, 4)), span[1]]
    columns = ["busy_ns", "wait_data_ns", "wait_communication_ns", "idle_ns", "other_ns"]
    sql = f"SELECT {', '.join(columns)} FROM workers ORDER BY worker"
    whole = np.array([list(r.values()) for r in rows(run, sql)])
    total = np.zeros_like(whole)
    try:
        for begin, end in itertools.pairwise(cuts):
            run.window(begin, end)
            total += np.array([list(r.values()) for r in rows(run, sql)])
    finally:
        run.window()
    assert (total == whole).all()


def test_queues(paths: dict[str, Path]) -> None:
    """The depth after every assign, and at each pressure whose queue it was."""
    with Session.open(paths["dynamic"], threads=1) as run:
        assigns = rows(run, "SELECT t, aux FROM events WHERE hook_name = 'assign'")
        expected = sorted((e["t"], e["aux"] >> 48, e["aux"] >> 24 & 0xFFFFFF, e["aux"] & 0xFFFFFF) for e in assigns)
        found = rows(run, "SELECT t, worker, depth, capacity FROM queues WHERE what = 'assign'")
        assert sorted(tuple(row.values()) for row in found) == expected
        pressures = rows(run, "SELECT * FROM queues WHERE what <> 'assign'")
        assert {row["what"] for row in pressures} == {"above", "below"}
        depth = {
            (row["t"], row["worker"]): row["depth"] for row in rows(run, "SELECT * FROM queues WHERE what = 'assign'")
        }
        for row in pressures:
            assert row["depth"] == row["threshold"] - (row["what"] == "below")
            assert row["what"] == "below" or depth[row["t"], row["worker"]] >= row["depth"]
    with Session.open(paths["static"], threads=1) as run:
        assert rows(run, "SELECT * FROM queues") == []


def test_rounds(paths: dict[str, Path]) -> None:
    """Both ranks of each round, and who was late: exactly one of them, or the data was there in time."""
    with Session.open(paths["ranks"], threads=1) as run:
        rounds = rows(run, "SELECT * FROM comm ORDER BY comm, rank")
        sends = {(e["comm"], e["rank"]): e for e in rows(run, "SELECT * FROM events WHERE hook_name = 'send'")}
        receives = {(e["comm"], e["rank"]): e for e in rows(run, "SELECT * FROM events WHERE hook_name = 'receive'")}
        assert {(r["comm"], r["rank"]) for r in rounds} == sends.keys() == receives.keys()
        for r in rounds:
            mine, peers = sends[r["comm"], r["rank"]], sends[r["comm"], 1 - r["rank"]]
            got = receives[r["comm"], r["rank"]]
            begin = got["t"] - got["since_ns"]
            assert (r["sent"], r["bytes"], r["class"]) == (mine["t"], mine["aux"], mine["class"])
            assert (r["received"], r["wait_begin"], r["wait_ns"]) == (got["t"], begin, got["since_ns"])
            assert (r["last_sender"], r["last_sent"], r["senders"], r["peers"]) == (1 - r["rank"], peers["t"], 1, 1)
            assert r["late_sender_ns"] == max(0, min(peers["t"], got["t"]) - begin)
            assert r["late_receiver_ns"] == max(0, begin - peers["t"])
            assert min(r["late_sender_ns"], r["late_receiver_ns"]) == 0
        assert any(r["late_sender_ns"] > 0 for r in rounds)
        assert any(r["late_receiver_ns"] > 0 for r in rounds)
    with Session.open(paths["static"], threads=1) as run:
        assert rows(run, "SELECT * FROM comm") == []


def test_bubbles(run: Session) -> None:
    """Between two tasks of a worker; ended by the task that released what the next had waited for."""
    by_worker: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    tasks = rows(run, "SELECT * FROM tasks ORDER BY start, task")
    by_task = {t["task"]: t for t in tasks}
    for t in tasks:
        by_worker[t["rank"], t["worker"]].append(t)
    expected = {
        (b["task"], a["task"], a["complete"], b["start"])
        for those in by_worker.values()
        for a, b in itertools.pairwise(those)
        if a["complete"] < b["start"]
    }
    bubbles = rows(run, "SELECT * FROM bubbles")
    assert {(b["task"], b["after_task"], b["t_begin"], b["t_end"]) for b in bubbles} == expected
    assert len(bubbles) == len(expected) > 10
    for b in bubbles:
        ready = by_task[b["task"]]["ready"]
        assert b["ns"] == b["t_end"] - b["t_begin"] == b["starved_ns"] + b["late_ns"]
        assert b["starved_ns"] == max(0, min(ready, b["t_end"]) - b["t_begin"])
        producer = by_task.get(b["producer"])
        if producer:
            assert (b["producer_class"], b["producer_complete"]) == (producer["class"], producer["complete"])
            assert producer["complete"] <= b["t_end"]
        assert b["lost"] == 0
    assert any(b["producer_class"] and b["starved_ns"] > 0 for b in bubbles)


def test_tiles_add_up(run: Session) -> None:
    """At every level the same running time, and the names of the classes."""
    tiles = rows(run, "SELECT level, sum(busy)::BIGINT AS busy, count(class) AS named FROM tiles GROUP BY level")
    (whole,) = rows(run, "SELECT sum(exec_ns)::BIGINT AS ns FROM tasks")
    assert len(tiles) == 6
    assert all(t["busy"] == whole["ns"] and t["named"] for t in tiles)


def test_what_was_lost_is_not_made_up(tmp_path: Path) -> None:
    """Half of the events are gone: times are null or right, gaps say that something ran unseen, nobody is late."""
    spec = asked_runs.SMALL + ",steps=40,ranks=2"
    asked_runs.record(tmp_path / "whole", spec)
    asked_runs.record(tmp_path / "lossy", spec + ",lose=0.5")
    with Session.open(tmp_path / "whole", threads=1) as whole, Session.open(tmp_path / "lossy", threads=1) as lossy:
        for view, key, fields in (
            ("tasks", ("task",), ("ready", "assign", "start", "complete", "exec_ns", "queue_ns", "released_by")),
            ("requests", ("request",), ("admitted", "first_token", "ended", "ttft_ns", "per_token_ns")),
            ("comm", ("comm", "rank"), ("sent", "received", "late_sender_ns", "late_receiver_ns", "last_sender")),
            ("steps", ("step",), ("requests",)),
        ):
            true = {tuple(r[k] for k in key): r for r in rows(whole, f"SELECT * FROM {view}")}
            known = 0
            for r in rows(lossy, f"SELECT * FROM {view}"):
                for name in fields:
                    if r[name] is not None:
                        assert r[name] == true[tuple(r[k] for k in key)][name], (view, name)
                        known += 1
            assert known
        true_steps = {r["step"]: r["ns"] for r in rows(whole, "SELECT * FROM steps")}
        for r in rows(lossy, "SELECT * FROM steps"):
            assert r["ns"] == true_steps[r["step"]] or (not r["told"] and r["ns"] < true_steps[r["step"]])
            assert 0 < r["covered"] < 1
        real = {(b["after_task"], b["task"]) for b in rows(whole, "SELECT after_task, task FROM bubbles")}
        following = {(a, b) for a, b in real}
        for b in rows(lossy, "SELECT * FROM bubbles WHERE lost = 0"):
            assert (b["after_task"], b["task"]) in following
        for w in rows(lossy, "SELECT * FROM workers"):
            assert w["lost"] > 0
            assert w["other_ns"] > 0


def test_escalated_rows_make_no_tasks_of_all(tmp_path: Path) -> None:
    """Put together from events that a program picked, they stand for what it does, and for the least of several."""
    programs = [
        {"program": p, "name": f"p{p}", "selection": s, "source": "", "hash": ""}
        for p, s in ((1, "all"), (2, "escalated(slow)"), (3, "sampled(1/8)"))
    ]
    for name, emitted, wanted in (
        ("recorder", 1, "all"),
        ("both", [3, 5] * 30, "all"),
        ("sampled", [1, 4] * 30, "sampled(1/8)"),
        ("picked", [4, 2] * 30, "escalated(slow)"),
    ):
        writer = recordings.begin(tmp_path / name, programs)
        writer.append("events", recordings.ring_rows(60, by=np.array(emitted, np.uint32)))
        writer.finish("ended")
        with Session.open(tmp_path / name, threads=1) as session:
            for view in ("tasks", "waits"):
                found = {r["selection"] for r in rows(session, f"SELECT selection FROM {view}")}
                assert found == {wanted}, (name, view)


def test_too_many_events_to_pair_on_the_fly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out is said, and nothing is bounded of which a part is not there."""
    monkeypatch.setattr(derived_rest, "EVENTS_MOST", 100)
    path = recordings.unsealed(tmp_path / "x.mscope")
    with Session.open(path, threads=1) as session:
        assert rows(session, "SELECT count(*) AS n FROM tasks") == [{"n": 0}]
        assert any("240 events are too many" in line for line in session.coverage_lines(["tasks"]))
        assert rows(session, "SELECT missing_rows('start', 0, 500) AS n") == [{"n": None}]
        assert rows(session, "SELECT count(*) AS n FROM events") == [{"n": 240}]


def test_the_same_live_and_sealed(tmp_path: Path) -> None:
    """Tasks and waits of a recording that goes on are those that the sealed one has."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    sql = "SELECT * EXCLUDE (selection) FROM {} ORDER BY ALL"
    with Session.open(writer.path, threads=1) as session:
        live = {v: rows(session, sql.format(v)) for v in ("tasks", "waits")}
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        assert {v: rows(session, sql.format(v)) for v in live} == live
    assert all(live.values())
