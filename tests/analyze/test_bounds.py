"""Bounds that really bound: by arithmetic, and on runs whose losses were forced and whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import asked_runs
import duckdb
import pytest
import recordings
from hypothesis import given
from hypothesis import strategies as st

from megascope.analyze.bounds import bounds_text
from megascope.analyze.macro import macros
from megascope.analyze.report import ask
from megascope.analyze.session import Session
from megascope.store import tables

QUANTILES = (0.5, 0.9, 0.99)
LOSSES = ("0.05", "0.2", "0.4", "0.6")


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB with the macros that need no trace."""
    with duckdb.connect() as opened:
        for name in ("count_bounds", "quantile_ranks", "quantile_bounds", "counted_bounds"):
            opened.execute(macros()[name].statement)
        yield opened


def quantile_of(con: duckdb.DuckDBPyConnection, samples: list[int | None] | None, q: float, m: float | None) -> Any:
    """What `quantile_bounds` gives."""
    (found,) = con.execute("SELECT quantile_bounds(?::BIGINT[], ?, ?)", [samples, q, m]).fetchall()[0]
    return found


def quantile(values: list[int], q: float) -> int:
    """The least value that a share `q` of all does not exceed."""
    return sorted(values)[max(math.ceil(Fraction(q).limit_denominator(10**6) * len(values)), 1) - 1]


def holds(bounds: dict[str, Any], truth: float) -> bool:
    """Whether the bounds have room for the truth; refused ones claim nothing."""
    if bounds["refused"]:
        return True
    return (bounds["low_open"] or bounds["low"] <= truth) and (bounds["high_open"] or truth <= bounds["high"])


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=60), st.data(), st.integers(0, 20).map(lambda i: i / 20))
def test_whatever_was_lost(
    con: duckdb.DuckDBPyConnection, population: list[int], data: st.DataObject, q: float
) -> None:
    """Any part of any population may be missing, wholly or with its value only: the truth lies between the bounds."""
    fate = data.draw(st.lists(st.sampled_from(["keep", "lose", "blank"]), min_size=60, max_size=60))
    kept = [v if f == "keep" else None for v, f in zip(population, fate, strict=False) if f != "lose"]
    m = 1 - len(kept) / len(population)
    found = quantile_of(con, kept, q, m)
    assert holds(found, quantile(population, q))
    assert found["observed"] == sum(v is not None for v in kept)


@given(st.lists(st.none() | st.integers(-9, 9), max_size=60), st.integers(-1, 21), st.none() | st.integers(-1, 21))
def test_counted_is_as_listed(con: duckdb.DuckDBPyConnection, samples: list[int | None], q: int, m: int | None) -> None:
    """`counted_bounds` of values that were counted is `quantile_bounds` of the same values, listed."""
    ascending = sorted(set(samples), key=lambda v: (v is None, v or 0))
    upto = list(accumulate(samples.count(v) for v in ascending))
    counted = [{"value": v, "upto": n} for v, n in zip(ascending, upto, strict=True)]
    share = None if m is None else m / 20
    (found,) = con.execute(
        'SELECT counted_bounds(?::STRUCT("value" BIGINT, upto BIGINT)[], ?, ?)', [counted or None, q / 20, share]
    ).fetchall()[0]
    assert found == quantile_of(con, samples or None, q / 20, share)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 19).map(lambda i: Fraction(i, 20)))
def test_as_designed(con: duckdb.DuckDBPyConnection, observed: int, missing: int, q: Fraction) -> None:
    """With m missing: the observed quantiles at max(0, (q - m) / (1 - m)) and q / (1 - m), open beyond 0 and 1."""
    m = Fraction(missing, observed + missing)
    low, high = (q - m) / (1 - m), q / (1 - m)
    found = quantile_of(con, list(range(1, observed + 1)), float(q), float(m))
    assert found["low"] == max(1, math.ceil(max(low, 0) * observed))
    assert found["high"] == min(observed, math.ceil(high * observed))
    assert found["low_open"] == (low <= 0)
    assert found["high_open"] == (math.ceil(high * observed) > observed)
    if missing == 0:
        assert found["low"] == found["high"]


@pytest.mark.parametrize(
    ("n", "q", "why"),
    [
        (999, 0.99, "999 observed are too few"),
        (1000, 0.99, None),
        (9_999, 0.999, "9999 observed are too few"),
        (10_000, 0.999, None),
        (999, 0.01, "999 observed are too few"),
        (1, 0.5, None),
        (0, 0.5, "nothing was observed"),
        (5, 1.5, "a quantile lies between 0 and 1"),
        (5, float("nan"), "a quantile lies between 0 and 1"),
    ],
)
def test_refused(con: duckdb.DuckDBPyConnection, n: int, q: float, why: str | None) -> None:
    """A p99 of fewer than 1,000, and whatever else has no quantile."""
    found = quantile_of(con, list(range(n)), q, 0.0)
    assert found["refused"] == why
    assert (found["low"] is None) == (why is not None)


def test_unknown_and_total_loss_leave_nothing_claimed(con: duckdb.DuckDBPyConnection) -> None:
    """No share, all of it, nulls, no list: open both ways, or refused."""
    for m in (None, 1.0):
        found = quantile_of(con, [3, 1, 2], 0.5, m)
        assert (found["low"], found["high"]) == (1, 3)
        assert found["low_open"]
        assert found["high_open"]
    assert quantile_of(con, None, 0.5, 0.1)["refused"] == "nothing was observed"
    assert quantile_of(con, [None, None], 0.5, 0.0)["refused"] == "nothing was observed"
    assert con.execute("SELECT count_bounds(3, NULL)").fetchall() == [({"low": 3, "high": None},)]
    assert con.execute("SELECT count_bounds(3, 2)").fetchall() == [({"low": 3, "high": 3},)]


def test_as_text() -> None:
    """One cell a bound."""
    whole = {"low": 1200.0, "high": 1200.0, "low_open": False, "high_open": False, "observed": 5, "refused": None}
    assert bounds_text(whole) == "1,200"
    assert bounds_text(whole | {"high": 1500.5}) == "1,200 … 1,500.5"
    assert bounds_text(whole | {"high_open": True}) == "≥ 1,200"
    assert bounds_text(whole | {"low_open": True, "high": 1300.0}) == "≤ 1,300"
    assert bounds_text(whole | {"low_open": True, "high_open": True}) == "unknown: 1,200 seen"
    assert bounds_text(whole | {"refused": "too few"}) == "refused: too few"
    assert bounds_text({"low": 4, "high": 9}) == "4 … 9"
    assert bounds_text({"low": 4, "high": None}) == "≥ 4"
    assert bounds_text(None) is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run, recorded whole and with more and more of its events lost."""
    folder = tmp_path_factory.mktemp("lossy")
    spec = asked_runs.SMALL + ",ranks=2,workers=3,steps=80,seed=3"
    spec = spec.replace("workers=5,", "")
    paths = {}
    results = []
    for lose in ("0", *LOSSES):
        paths[lose] = folder / f"{lose}.mscope"
        results.append(asked_runs.record(paths[lose], f"{spec},lose={lose}"))
    assert len({(r.steps, r.t, r.fired) for r in results}) == 1, "losing events must not change the run"
    assert [r.lost / r.fired for r in results] == pytest.approx([0, 0.05, 0.2, 0.4, 0.6], abs=0.03)
    return paths


@cache
def truth(path: Path, window: tuple[int, int]) -> dict[str, dict[Any, list[int | None]]]:
    """Every value of the whole run that ended in the window: running times and queueing by class, waits, steps."""
    begin, end = window
    with Session.open(path, threads=1) as session:
        asked = {
            "exec": f"SELECT class, exec_ns FROM tasks WHERE complete >= {begin} AND complete < {end}",
            "queue": f"SELECT class, queue_ns FROM tasks WHERE start >= {begin} AND start < {end}",
            "waits": f"SELECT (kind, class)::VARCHAR, ns FROM waits WHERE t_end >= {begin} AND t_end < {end}",
            "steps": f"SELECT 'all', ns FROM steps WHERE t_end >= {begin} AND t_end < {end}",
        }
        out: dict[str, dict[Any, list[int | None]]] = {}
        for name, sql in asked.items():
            groups = out.setdefault(name, {})
            for key, value in zip(*session.run(sql).read_all().columns, strict=True):
                groups.setdefault(key.as_py(), []).append(value.as_py())
        return out


@pytest.mark.parametrize(
    ("lose", "part"), [*((lose, (0.0, 1.0)) for lose in ("0", *LOSSES)), ("0.05", (0.3, 0.6)), ("0.6", (0.3, 0.6))]
)
def test_truth_lies_within(runs: dict[str, Path], lose: str, part: tuple[float, float]) -> None:
    """Counts and quantiles of each class and of waits and steps, of the whole and of a stretch cut anywhere."""
    with Session.open(runs["0"], threads=1) as session:
        span = session.span()
        assert span is not None
    begin, end = (span[0] + round((span[1] - span[0]) * share) for share in part)
    whole = truth(runs["0"], (begin, end))
    checked = 0
    with Session.open(runs[lose], threads=1) as session:
        session.window(begin, end)
        for row in ask(session, "classes").rows.to_pylist():
            execs = whole["exec"].get(row["class"], [])
            assert row["tasks"]["low"] <= len(execs) <= row["tasks"]["high"], row["class"]
            for kind, fields in (("exec", QUANTILES), ("queue", (0.5, 0.99))):
                values = whole[kind].get(row["class"], [])
                for q in fields if values and None not in values else ():
                    found = row[f"{kind}_p{round(q * 100)}"]
                    assert holds(found, quantile([v for v in values if v is not None], q)), (row["class"], kind, q)
                    checked += not found["refused"]
        for row in ask(session, "waits").rows.to_pylist():
            lengths = whole["waits"].get(f"({row['kind']}, {row['class'] if row['class'] else 'NULL'})", [])
            assert row["waits"]["low"] <= len(lengths) <= row["waits"]["high"], row
            if lengths and None not in lengths:
                assert holds(row["p50"], quantile([v for v in lengths if v is not None], 0.5)), row
                checked += 1
        if part == (0.0, 1.0):
            facts = {r["item"]: r["bounds"] for r in ask(session, "overview").rows.to_pylist()}
            lengths = [v for v in whole["steps"]["all"] if v is not None]
            assert holds(facts["step, p50"], quantile(lengths, 0.5))
    assert checked > 40


@pytest.mark.parametrize("lose", ["0", *LOSSES])
def test_macros_bound_what_people_ask(runs: dict[str, Path], lose: str) -> None:
    """The same in a query of one's own, of all tasks: bounds that hold, tight without loss and wider with more."""
    with Session.open(runs["0"], threads=1) as session:
        values = session.run("SELECT exec_ns FROM tasks").read_all()["exec_ns"].to_pylist()
    sql = """
        SELECT count_bounds(count(*), count(*) + any_value(lost)) AS n,
            quantile_bounds(list(exec_ns), 0.5, any_value(lost) / (count(*) + any_value(lost))) AS p50,
            quantile_bounds(list(exec_ns), 0.99, any_value(lost) / (count(*) + any_value(lost))) AS p99
        FROM (SELECT exec_ns, missing_rows('complete', NULL, NULL) AS lost FROM tasks WHERE complete IS NOT NULL)
    """
    with Session.open(runs[lose], threads=1) as session:
        (row,) = session.run(sql).read_all().to_pylist()
    assert row["n"]["low"] <= len(values) <= row["n"]["high"]
    # Every task fires one complete, so all of them together are known exactly.
    assert row["n"]["high"] == len(values)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        assert not row[name]["refused"]
        assert holds(row[name], quantile(values, q))
    assert (row["p50"]["low"] == row["p50"]["high"]) == (lose == "0")
    assert (row["p50"]["low_open"] or row["p50"]["high_open"]) == (lose == "0.6")


def missing_of(path: Path, *arguments: str) -> list[int | None]:
    """`missing_rows` of each of these argument lists."""
    with Session.open(path, threads=1) as session:
        return [session.run(f"SELECT missing_rows({a}) AS n").read_all()["n"][0].as_py() for a in arguments]


def test_missing_rows_counts_every_way_to_lose(tmp_path: Path) -> None:
    """In queues and in the ring by hook and interval; after the ring at any hook; and what no count tells of."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("events", recordings.ring_rows(180, hook=3))
    flows = [
        recordings.flow(100, lost=7, ring_lost=2, t_begin=0, t_end=1000),
        recordings.flow(100, lost=1, t_begin=1000, t_end=2000),
        recordings.flow(10, hook=4, lost=10, t_begin=1000, t_end=2000),
    ]
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    writer.lose("disk_budget", 4, t_begin=1500, t_end=1600)
    writer.lose("queue_full", 18)
    writer.lose("since_saturated", 9)
    writer.finish("engine ended")
    asked = ("'start', NULL, NULL", "'start', NULL, 900", "'start', 1100, NULL", "'complete', NULL, NULL")
    # 190 rows were written; 180 are here and 4 were lost on the way, so 6 more are gone and nobody knows which.
    assert missing_of(tmp_path / "x.mscope", *asked) == [10 + 4 + 6, 9 + 6, 1 + 4 + 6, 10 + 4 + 6]


def test_unknown_is_null(tmp_path: Path) -> None:
    """Open intervals, damage without a count, a trace that goes on, no coverage at all: no bound."""
    writer = recordings.begin(tmp_path / "open.mscope")
    flows = [recordings.flow(100), recordings.flow(0, hook=0, closed=False, t_begin=5000, t_end=6000)]
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    writer.append("events", recordings.ring_rows(100))
    writer.finish("engine ended")
    assert missing_of(writer.path, "'start', NULL, NULL", "'start', 0, 4999") == [None, 0]

    writer = recordings.begin(tmp_path / "bad.mscope")
    writer.append("coverage", recordings.rows(tables.COVERAGE, recordings.flow(100)))
    writer.append("events", recordings.ring_rows(99))
    writer.lose("bad_row", 1)
    writer.finish("engine ended")
    assert missing_of(writer.path, "'start', NULL, NULL") == [None]

    assert missing_of(recordings.empty(tmp_path / "empty.mscope"), "'start', NULL, NULL") == [None]
    unsealed = recordings.unsealed(tmp_path / "unsealed.mscope")
    assert missing_of(unsealed, "'start', NULL, NULL", "'start', 0, 500") == [None, 20]
