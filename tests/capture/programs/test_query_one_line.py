"""The questions that must each be one line, on the recorded sample, against the same asked of its events by DuckDB."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from query_session import Session, sample_rows, sample_tables

from megascope.capture.programs.language.codegen_conditions import sample_hash
from megascope.store.tables import EVENT_ROW

REQUEST = 'ready,assign,start,complete /belongs_to("req-000002")/ { emit(); }'
GENERATION = "ready,assign,start,complete /belongs_to(2)/ { emit(); }"
WAITS = "resume /wait_ns > 20us/ { @waits[dep_class] = hist(wait_ns); }"
EXPERTS = (
    'complete /operator == "expert_*"/ { @work[step, layer, expert] = sum(exec_ns); } '
    "receive { @late[step, layer, comm] = max(wait_ns); }"
)
LATE = "resume /dep && wait_ns > 5us/ { @late[producer, class] = stats(wait_ns); }"
SLO = "complete { @lat = hist(exec_ns); if (p99(@lat) > 20us) { emit(); } }"
SAMPLE = "ready,assign,start,complete /sample(1/64)/ { emit(); }"


@cache
def _columns() -> dict[str, Any]:
    raw = sample_rows().view(EVENT_ROW.dtype).reshape(-1)
    return {name: np.ascontiguousarray(raw[name].astype(np.int64)) for name in EVENT_ROW.names}


def _asked(sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.register("events", pa.table(_columns()))
        for name, table in sample_tables().items():
            db.register(name, table)
        return db.execute(sql).fetchall()


def _session(text: str, **how: Any) -> Session:
    assert "\n" not in text
    session = Session(text, **how)
    assert session.verdict.simt, session.verdict.serial_because
    return session


def test_the_tasks_of_one_request() -> None:
    wanted = _asked(
        """SELECT worker, seq FROM events WHERE hook IN (1, 2, 3, 4) AND (request = 2 OR request IN
           (SELECT request_set + 2147483648 FROM request_sets WHERE request = 2))"""
    )
    assert len(wanted) > 1000
    for text in (REQUEST, GENERATION):
        exported = _session(text).exported
        assert set(zip(_columns()["worker"][exported], _columns()["seq"][exported], strict=True)) == set(wanted)


def test_waits_over_20_us_by_kind() -> None:
    found = _session(WAITS).answers.values("waits")
    wanted = _asked(
        """SELECT dep_class, count(*), sum(t - aux), min(t - aux), max(t - aux) FROM events
           WHERE hook = 6 AND t - aux > 20000 GROUP BY 1"""
    )
    assert {(*k, *map(int, w[:4])) for k, w in found.items()} == set(wanted)
    assert len(wanted) >= 2


def test_expert_imbalance_against_a_round() -> None:
    answers = _session(EXPERTS).answers
    work = _asked(
        """SELECT step, layer, tile >> 16, sum(t - aux) FROM events JOIN task_classes ON id = task_class
           WHERE hook = 4 AND starts_with(operator, 'expert_') GROUP BY ALL"""
    )
    late = _asked(
        """SELECT step, layer, comm, max(t - aux) FROM events JOIN task_classes ON id = task_class
           WHERE hook = 9 AND aux != 0 AND layer >= 0 GROUP BY ALL"""
    )
    assert {(*k, int(w[0])) for k, w in answers.values("work").items()} == set(work)
    assert {(*k, int(w[0])) for k, w in answers.values("late").items()} == set(late)
    assert len(work) > 100
    assert len(late) > 100


def test_who_releases_late_for_whom() -> None:
    found = _session(LATE).answers.values("late")
    wanted = _asked(
        """SELECT greatest(producer_class, 0), task_class, count(*), sum(t - aux), min(t - aux), max(t - aux)
           FROM events JOIN dependencies ON id = dep WHERE hook = 6 AND dep != 0 AND t - aux > 5000 GROUP BY ALL"""
    )
    assert {(*k, *map(int, w)) for k, w in found.items()} == set(wanted)
    assert wanted


def test_raw_events_only_while_the_p99_is_over_the_slo() -> None:
    assert not _session(SLO).exported.any()
    exported = _session(SLO, feed={0: (20_001, 1)}).exported
    c = _columns()
    assert (exported == ((c["hook"] == 4) & (c["t"] >= 10_000_000))).all()
    assert not _session(SLO, feed={0: (20_000, 1)}).exported.any()


def test_one_in_64_tasks_whole() -> None:
    session = _session(SAMPLE)
    assert session.query.program.sample == 64
    c = _columns()
    inside = np.array([sample_hash(int(t)) % 64 == 0 for t in c["task"]])
    ranges = c["flags"] >= 0x80
    assert (session.exported == (np.isin(c["hook"], (1, 2, 3, 4)) & (inside | ranges))).all()
    tasks = [set(c["task"][session.exported & (c["hook"] == h) & ~ranges]) for h in (2, 3, 4)]
    assert tasks[0] == tasks[1] == tasks[2]
    share = len(tasks[1]) / len(set(c["task"][c["hook"] == 3]))
    assert 0.8 / 64 < share < 1.2 / 64
