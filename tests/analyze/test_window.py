"""A session's window, and the stretch of time that a query's own WHERE leaves: the same rows, from fewer parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.analyze.sandbox import admit
from megascope.analyze.session import Session
from megascope.analyze.when import device_time, moment
from megascope.analyze.window import WHOLE, Window
from megascope.store import seal, spool
from megascope.store.errors import Refused, Usage
from megascope.store.tables import STREAMS

PARTS, PART_ROWS = 8, 120
ROWS = PARTS * PART_ROWS
LAST = (ROWS - 1) * 10


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in eight parts: t = 0, 10, …; 1,200 ns each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal, "PART_ROWS", PART_ROWS)
        patch.setattr(seal, "_PART_MOST", PART_ROWS * 5 // 4)
        patch.setattr(spool, "ROTATE_ROWS", PART_ROWS)
        writer = recordings.begin(tmp_path_factory.mktemp("parts") / "x.mscope", fits=recordings.FITS)
        whole = recordings.ring_rows(ROWS)
        for i in range(PARTS):
            writer.append("events", whole.slice(i * PART_ROWS, PART_ROWS))
            writer.flush()
        writer.finish("ended", t=LAST + 10)
    return writer.path


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[Session]:
    """A session over it."""
    with Session.open(path, threads=1) as opened:
        assert len(opened.trace.parts("events")) == PARTS
        yield opened


def files_read(session: Session) -> int:
    """How many parts `events` reads now."""
    (text,) = session._con.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'stored_events'").fetchall()[0]
    return len(re.findall(r"events-\d+\.parquet", text))


def one(session: Session, sql: str) -> Any:
    """The only value of an answer."""
    (row,) = session.run(sql).read_all().to_pylist()
    (value,) = row.values()
    return value


@pytest.mark.parametrize(
    ("where", "window", "parts"),
    [
        ("t BETWEEN 1000 AND 1100", Window(1000, 1101), 1),
        ("t >= 1000 AND t < 1300", Window(1000, 1300), 2),
        ("1300 > t AND e.t > 999 AND worker = 1", Window(1000, 1300), 2),
        ("t = 5000", Window(5000, 5001), 1),
        ("t <= -3", Window(None, -2), 0),
        ("t > 9000", Window(9001, None), 1),
        ("(t > 100 AND t < 9000) AND (t < 2000 AND hook = 3)", Window(101, 2000), 2),
        ("t > 100 OR t < 50", WHOLE, 8),
        ("NOT t > 100", WHOLE, 8),
        ("t > 100 + 50", WHOLE, 8),
        ("t > 1e3", WHOLE, 8),
        ("seq > 100", WHOLE, 8),
        ("t > seq", WHOLE, 8),
        ("true", WHOLE, 8),
    ],
)
def test_what_a_where_leaves(session: Session, where: str, window: Window, parts: int) -> None:
    """Only plain comparisons of t with whole numbers, and only those that every row must pass."""
    sql = f"SELECT count(*) AS n FROM events AS e WHERE {where}"
    assert admit(session._aside, sql, {"events": ""}).window == window
    found = one(session, sql)
    assert files_read(session) == parts
    # Said so that nothing can be read from it.
    assert found == one(session, f"SELECT count(*) FILTER (WHERE {where}) AS n FROM events AS e")
    assert files_read(session) == PARTS


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM events AS a JOIN events AS b ON a.t = b.t + 5000 WHERE a.t < 9000",
        "SELECT (SELECT max(t) FROM events) FROM events WHERE t = 0",
        "SELECT max(t) FROM (SELECT t + 5000 AS t FROM events) WHERE t > 8000",
        "WITH events AS (SELECT t - 100 AS t FROM events) SELECT count(*) FROM events WHERE t < 0",
        "SELECT count(*) FROM events AS e(a, b, t) WHERE t < 100",
        "SELECT count(*) FROM (SELECT t FROM events) AS e WHERE t < 100",
        "SELECT count(*) FROM events WHERE t < 100 UNION ALL SELECT count(*) FROM events",
        "SELECT count(*) FROM events WHERE t < 100 AND step IN (SELECT step FROM steps WHERE t_begin > 5000)",
        "SELECT count(*) FROM workers WHERE (SELECT count(*) FROM events WHERE t < 100) > 0",
    ],
)
def test_narrowing_changes_no_answer(path: Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more than one thing reads events, or what is compared is not their t: the same as without narrowing."""
    with Session.open(path, threads=1) as session:
        found = session.run(sql).read_all()
    monkeypatch.setattr("megascope.analyze.sandbox.events_between", lambda _: None)
    with Session.open(path, threads=1) as session:
        assert session.run(sql).read_all().equals(found)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["<", "<=", ">", ">=", "="]), st.integers(-50, LAST + 50)), max_size=3))
def test_any_conjunction(session: Session, tests: list[tuple[str, int]]) -> None:
    """Narrowed or not, and one after the other in one session: the rows that pass."""
    where = " AND ".join(f"t {op} {value}" for op, value in tests) or "true"
    expected = sum(all(eval(f"{t} {'==' if op == '=' else op} {v}") for op, v in tests) for t in range(0, LAST + 1, 10))
    assert one(session, f"SELECT count(*) FROM events WHERE {where}") == expected
    assert one(session, "SELECT count(*) FROM events") == ROWS


def test_a_relation_is_not_narrowed_behind_its_back(path: Path) -> None:
    """It is planned anew when it is read, whatever was asked in between."""
    with Session.open(path, threads=1) as session:
        relation = session.relation("SELECT t FROM events")
        assert one(session, "SELECT count(*) FROM events WHERE t < 100") == 10
        assert relation.aggregate("count(*)").fetchall() == [(ROWS,)]


def test_window_confines_every_view(path: Path) -> None:
    """Rows that overlap it, of streams and of what is put together from them; side tables stay; and it opens again."""
    with Session.open(path, threads=1) as session:
        whole = {
            v: one(session, f"SELECT count(*) FROM {v}") for v in ("events", "tasks", "waits", "steps", "task_classes")
        }
        spans = session.run(
            "SELECT coalesce(start, ready, assign, complete) AS a, "
            "coalesce(complete, start, ready, assign) AS b FROM tasks"
        ).read_all()
        session.window(2000, 3000)
        assert session.looked_at() == (2000, 3000)
        assert one(session, "SELECT count(*) FROM events") == 100
        assert files_read(session) == 2
        assert session.run("SELECT min(t) AS a, max(t) AS b FROM events").read_all().to_pylist() == [
            {"a": 2000, "b": 2990}
        ]
        overlap = sum(a < 3000 and b >= 2000 for a, b in zip(*(c.to_pylist() for c in spans.columns), strict=True))
        assert one(session, "SELECT count(*) FROM tasks") == overlap > 0
        assert one(session, "SELECT count(*) FROM task_classes") == whole["task_classes"]
        assert one(session, "SELECT window_end() - window_begin()") == 1000
        # A query's own stretch and the window's: both.
        assert one(session, "SELECT count(*) FROM events WHERE t > 2500") == 49
        session.window(2500, None)
        assert session.looked_at() == (2500, LAST + 1)
        assert one(session, "SELECT count(*) FROM events WHERE t < 2600") == 10
        session.window()
        assert {v: one(session, f"SELECT count(*) FROM {v}") for v in whole} == whole
        assert one(session, "SELECT window_end()") == LAST + 1
        with pytest.raises(Usage, match="5 to 5 is no stretch of time"):
            session.window(5, 5)


def test_a_window_outside_the_trace_is_refused(path: Path) -> None:
    """On either side, open or not; what was looked at stays. At its edges there is something to see."""
    with Session.open(path, threads=1) as session:
        session.window(2000, 3000)
        for window in ((LAST + 11, None), (10**10, None), (10**10, 10**11)):
            with pytest.raises(Usage, match=r"after the trace's end; the trace goes from 0 to \d+ ns"):
                session.window(*window)
        for window in ((None, -5), (None, 0), (-20, -5)):
            with pytest.raises(Usage, match=r"ms before the trace begins; the trace goes from 0 to "):
                session.window(*window)
        assert session.looked_at() == (2000, 3000)
        session.window(LAST, None)
        assert one(session, "SELECT count(*) FROM events") == 1
        session.window(None, 1)
        assert one(session, "SELECT count(*) FROM events") == 1
        # The recording ended after its last event.
        session.window(LAST + 5, None)
        begin, end = session.looked_at() or (0, 0)
        assert (begin, end) == (LAST + 5, LAST + 11)
        assert one(session, "SELECT window_end() - window_begin()") == 6


def test_a_window_where_only_summaries_are(tmp_path: Path) -> None:
    """Raw rows stop at the disk budget, and coverage goes on: there is something to see of it."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("events", recordings.ring_rows(10))
    writer.append("intervals", one_row("intervals", {"t_begin": 5000, "t_end": 6000}))
    writer.flush()
    with Session.open(writer.path, threads=1) as session:
        session.window(5500, None)
        assert session.looked_at() == (5500, 6000)
        with pytest.raises(Usage, match="after the trace's end; the trace goes from 0 to 6000 ns"):
            session.window(6000, None)
    writer.finish("ended")


def one_row(stream: str, values: dict[str, int]) -> pa.RecordBatch:
    """One row of a stream: these values, 0 and null for the rest."""
    (table,) = (t for t in STREAMS if t.name == stream)
    rest = (None if f.nullable else "" if pa.types.is_string(f.type) else 0 for f in table.schema)
    columns = [pa.array([values.get(f.name, value)]).cast(f.type) for f, value in zip(table.schema, rest, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def test_windows_of_a_recording_that_goes_on(tmp_path: Path) -> None:
    """Rows in the spool are confined like those in parts."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    with Session.open(writer.path, threads=1) as session:
        session.window(100, 200)
        assert one(session, "SELECT count(*) FROM events") == 10
        assert one(session, "SELECT count(*) FROM tasks") > 0
    writer.finish("ended")


@pytest.mark.parametrize(
    ("text", "t", "error"),
    [
        ("1200", 1200, 0),
        ("-5", -5, 0),
        ("+1.5us", 1600, 0),
        ("+0.000001ms", 101, 0),
        ("+2s", 2_000_000_100, 0),
        ("+1h", 3_600_000_000_100, 0),
        ("2023-11-14T22:13:20.000002Z", 2000, 7),
        ("2023-11-14 22:13:20.000002", 2000, 7),
        ("2023-11-14T22:13:21Z", 1_000_000_000, None),
    ],
)
def test_moments(text: str, t: int, error: int | None) -> None:
    """Device time, time since the begin, the clock on the wall with its error."""
    found = moment(text, 100, recordings.FITS)
    assert abs(found.t - t) <= (4 if error != 0 else 0)
    assert (found.error_ns is None) == (error is None)
    assert found.error_ns is None or found.error_ns <= (error or 0)


@pytest.mark.parametrize(
    "text", ["", "x", "+5", "+1.5 s", "5ms", "2023-13-01T00:00:00Z", "9" * 19, "+1e9s", "2023-11-14"]
)
def test_no_moments(text: str) -> None:
    """What is no time says how one is written."""
    with pytest.raises(Usage, match="cannot look at"):
        moment(text, 100, recordings.FITS)


def test_moments_that_a_trace_cannot_tell() -> None:
    """Without events there is no begin; without fits no clock on the wall."""
    with pytest.raises(Refused, match="no events to count from"):
        moment("+1s", None, [])
    with pytest.raises(Refused, match="was not fitted"):
        moment("2023-11-14T22:13:20Z", 0, [])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(-1000, 1000)), min_size=1, max_size=5), st.data())
def test_device_time_is_within_its_error(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """However one clock drifted against the other between two fits, as long as it went one way."""
    host, device = 10**18, 5000
    fits = [{"host_ns": host, "device_ns": device, "error_ns": 3}]
    for length, drift in steps:
        host, device = host + length, device + max(length + drift, 1)
        fits.append({"host_ns": host, "device_ns": device, "error_ns": 3})
    at = data.draw(st.integers(0, len(fits) - 2))
    before, after = fits[at], fits[at + 1]
    when = data.draw(st.integers(before["host_ns"], after["host_ns"] - 1))
    found = device_time(when, fits)
    assert found.error_ns is not None
    for fit in (before, after):
        assert abs(found.t - (when - fit["host_ns"] + fit["device_ns"])) <= found.error_ns


def test_missing_times_of_a_part_leave_it_in() -> None:
    """What is not known is not left out."""
    window = Window(10, 20)
    assert window.overlaps(None, None)
    assert window.overlaps(19, 30)
    assert window.overlaps(0, 10)
    assert not window.overlaps(20, 30)
    assert not window.overlaps(0, 9)
    assert window.within(Window(15, None)) == Window(15, 20)


def test_a_wait_that_went_on_is_in_every_later_window(tmp_path: Path) -> None:
    """Though the times of its part end before."""
    writer = recordings.begin(tmp_path / "x.mscope")
    hooks = [5, 6, 5, *[7] * 97]
    worker, seq = [0, 0, 0, *[1] * 97], [1, 2, 3, *range(1, 98)]
    aux, t = [4 << 32 | 5, 10, 4 << 32 | 5, *[1] * 97], np.arange(10, 1010, 10)
    writer.append("events", recordings.ring_rows(100, hook=hooks, worker=worker, seq=seq, aux=aux, t=t, dep=1, task=7))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        assert session.run("SELECT open FROM waits ORDER BY t_begin").read_all()["open"].to_pylist() == [False, True]
        session.window(900, 950)
        assert session.run("SELECT t_begin FROM waits").read_all()["t_begin"].to_pylist() == [30]
