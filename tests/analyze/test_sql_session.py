"""What a session answers: names, times and selections, on traces of every state and with what can go wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
import zlib
from pathlib import Path
from random import Random

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import recordings

from megascope.analyze import inputs
from megascope.analyze.catalogue import views
from megascope.analyze.session import Session
from megascope.store import manifest
from megascope.store.errors import Exit, MegascopeError, Refused, Usage
from megascope.store.trace import Trace

SLOW = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"


def test_events_carry_names(session: Session) -> None:
    """Hook, class and selection by name, equal to what a join would give."""
    wrong = session.run(
        "SELECT count(*) AS n FROM events e LEFT JOIN hooks h USING (hook) LEFT JOIN task_classes c "
        "ON e.task_class = c.id WHERE e.hook_name IS DISTINCT FROM h.name OR e.class IS DISTINCT FROM c.name"
    ).read_all()
    assert wrong["n"].to_pylist() == [0]
    found = session.run("SELECT hook_name, class, selection FROM events ORDER BY t LIMIT 2").read_all()
    assert found.to_pylist() == [
        {"hook_name": "ready", "class": "norm", "selection": "all"},
        {"hook_name": "assign", "class": "qkv", "selection": "all"},
    ]


def test_unknown_ids_have_no_name(tmp_path: Path) -> None:
    """A hook or class that nobody declared keeps its number and gets null, not a neighbour's name."""
    writer = recordings.begin(tmp_path / "x.mscope")
    writer.append("events", recordings.ring_rows(4, hook=[0, 14, 255, 3], task_class=[3, 9, 65535, 0]))
    writer.finish("engine ended")
    with Session.open(tmp_path / "x.mscope", threads=1) as session:
        found = session.run("SELECT hook_name, class FROM events ORDER BY t").read_all()
        # Such a row is in no trace; a file that somebody forged may have it.
        forged = "(SELECT * REPLACE (-13::SMALLINT AS hook, -2 AS task_class) FROM stored_events)"
        sql = views()["events"].sql.replace("FROM stored_events", f"FROM {forged}")
        negative = session._con.execute(f"SELECT DISTINCT hook_name, class FROM ({sql})").fetchall()
    assert found["hook_name"].to_pylist() == [None, None, None, "start"]
    assert found["class"].to_pylist() == [None, None, None, "norm"]
    assert negative == [(None, None)]


def test_selection_of_several_programs(tmp_path: Path) -> None:
    """all before sampled before escalated; of two alike the first program's."""
    programs = [
        {**recordings.RECORDER_PROGRAM, "program": 3},
        *(
            {"program": p, "name": f"p{p}", "selection": s, "source": "", "hash": ""}
            for p, s in ((1, "escalated(slow)"), (2, "sampled(1/8)"), (4, "escalated(stuck)"), (32, "sampled(1/2)"))
        ),
    ]
    writer = recordings.begin(tmp_path / "x.mscope", programs)
    emitted = [0b1, 0b10, 0b100, 0b111, 0b1001, 0b1010, 1 << 31, 1 << 31 | 0b1010, 0, 1 << 9]
    writer.append("events", recordings.ring_rows(len(emitted), by=np.array(emitted, np.uint32)))
    writer.finish("engine ended")
    with Session.open(tmp_path / "x.mscope", threads=1) as session:
        found = session.run("SELECT selection FROM events ORDER BY t").read_all()["selection"].to_pylist()
    slow, eighth, half = "escalated(slow)", "sampled(1/8)", "sampled(1/2)"
    assert found == [slow, eighth, "all", "all", slow, eighth, half, eighth, None, None]


def test_added_columns_cost_nothing_when_unasked(session: Session) -> None:
    """The plan of a query for plain columns reads those columns and joins nothing."""
    plan = session.run("EXPLAIN SELECT sum(t) FROM events WHERE hook = 3").read_all()["explain_value"][0].as_py()
    assert "JOIN" not in plan.upper()
    for name in ("class", "clock", "names", "selections", "task", "by"):
        assert name not in plan
    named = session.run("EXPLAIN SELECT hook_name, class, time, selection FROM events").read_all()
    assert "JOIN" not in named["explain_value"][0].as_py().upper()


def test_times_prune_row_groups(tmp_path: Path) -> None:
    """A filter on t reaches Parquet through the view."""
    path = recordings.sealed(tmp_path / "x.mscope")
    with Session.open(path, threads=1) as session:
        plan = session.run("EXPLAIN SELECT hook FROM events WHERE t BETWEEN 100 AND 200").read_all()
    text = " ".join(plan["explain_value"][0].as_py().split())
    assert "Filters: (t >= 100) AND (t <= 200)" in text.replace(" │ │ ", " ")


def test_parts_and_spool_are_one(tmp_path: Path) -> None:
    """A trace that is being recorded: sealed rows and spooled rows, each once, in their own types."""
    writer = recordings.begin(tmp_path / "x.mscope")
    total = 0
    for _ in range(5):
        writer.append("events", recordings.ring_rows(1 << 18))
        total += 1 << 18
    writer.append("events", recordings.ring_rows(17))
    writer.flush()
    deadline = time.monotonic() + 60
    while not Trace.open(writer.path).parts("events") and time.monotonic() < deadline:
        time.sleep(0.01)
    with Session.open(writer.path, threads=1) as session:
        told = session.run("SELECT state, event_parts, spool_rows, event_rows FROM trace").read_all().to_pylist()[0]
        counted = session.run("SELECT count(*) AS n, sum(t) AS t FROM events").read_all().to_pylist()[0]
    writer.finish("engine ended")
    assert told["state"] == "recording"
    assert told["event_parts"] > 0
    assert told["spool_rows"] >= 17
    assert told["event_rows"] == counted["n"] == total + 17
    with Session.open(writer.path, threads=1) as session:
        again = session.run("SELECT count(*) AS n, sum(t) AS t FROM events").read_all().to_pylist()[0]
        end = session.run("SELECT state, spool_rows, end_reason FROM trace").read_all().to_pylist()[0]
    assert again == counted
    assert end == {"state": "sealed", "spool_rows": 0, "end_reason": "engine ended"}


def test_trace_row(session: Session) -> None:
    """The one row of `trace` says when, what and how it ended."""
    told = session.run("SELECT * FROM trace").read_all().to_pylist()
    assert len(told) == 1
    wanted = {
        "name": "night run", "state": "sealed", "engine": "test engine", "epoch_ns": 1000, "first_epoch": 0,
        "last_epoch": 2, "t_begin": 0, "t_end": 2390, "event_rows": 240, "end_reason": "engine ended", "end_t": 2400,
        "notes": [], "abi": "1.0",
    }  # fmt: skip
    assert told[0] | wanted == told[0]
    assert told[0]["event_bytes"] > 0


def test_side_views(session: Session) -> None:
    """Hooks know what is exported; loss has its advice; now tells how long a worker waits, and for what."""
    unexported = session.run("SELECT name FROM hooks WHERE NOT exported").read_all()["name"].to_pylist()
    assert unexported == ["epoch"]
    lost = session.run("SELECT kind, count, unit, place, hook_name FROM loss").read_all().to_pylist()
    assert lost == [
        {
            "kind": "queue_full",
            "count": 20,
            "unit": "events",
            "place": "a worker's queue to its monitor",
            "hook_name": "start",
        }
    ]
    waits = session.run("SELECT worker, waited_ns, dep_name FROM now ORDER BY worker").read_all().to_pylist()
    assert waits == [
        {"worker": 0, "waited_ns": 350, "dep_name": "kv[0]"},
        {"worker": 1, "waited_ns": None, "dep_name": None},
    ]
    share = session.run("SELECT program_name, hook_name, covered FROM coverage").read_all().to_pylist()
    assert share == [{"program_name": "recorder", "hook_name": "start", "covered": 240 / 260}]


def test_empty_trace_answers(tmp_path: Path) -> None:
    """Nothing recorded is no error: rows are none, aggregates are null."""
    with Session.open(recordings.empty(tmp_path / "x.mscope"), threads=1) as session:
        for name in views():
            rows = session.run(f"SELECT * FROM {name}").read_all().num_rows
            assert (rows > 0) == (name in {"trace", "programs", "hooks", "loss_kinds", *recordings.GIVEN}), name
        assert session.run("SELECT max(t) AS t, min(time) AS time FROM events").read_all().to_pylist() == [
            {"t": None, "time": None}
        ]


def test_odd_directory_names(tmp_path: Path) -> None:
    """What DuckDB would take for a pattern, a quote or a partition is a name."""
    folder = tmp_path / "we[i]rd * ? it's" / "hook=3"
    folder.mkdir(parents=True)
    path = recordings.sealed(folder / "x.mscope")
    with Session.open(path, threads=1) as session:
        assert session.run("SELECT count(*) AS n FROM events").read_all()["n"].to_pylist() == [240]


def test_timeout(session: Session) -> None:
    """A deadline ends a query in one line, also in its middle, and the session goes on."""
    for sql in (SLOW, f"EXPLAIN ANALYZE {SLOW}", "SELECT range, hash(range) FROM range(100000000000)"):
        with pytest.raises(MegascopeError, match=r"it took longer than 0\.2 s; ask for less") as late:
            for _ in session.run(sql, timeout=0.2):
                pass
        assert late.value.code == Exit.FAILED
        assert session.run("SELECT 1 AS x", timeout=60).read_all()["x"].to_pylist() == [1]


@pytest.mark.parametrize("restarted", [False, True])
def test_ctrl_c_interrupts_the_query(session: Session, restarted: bool) -> None:
    """KeyboardInterrupt reaches whoever asked, while DuckDB computes, and the session goes on.

    Also where system calls are restarted after a signal, as in a process that has imported polars.
    """
    signal.siginterrupt(signal.SIGINT, not restarted)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run(SLOW).read_all()
    finally:
        timer.join()
        signal.siginterrupt(signal.SIGINT, True)
    assert session.run("SELECT 1 AS x").read_all()["x"].to_pylist() == [1]


def test_coverage_beside_an_unfinished_result(session: Session) -> None:
    """Asking what views a query reads, and what they stand for, does not end the result that is being read."""
    result = session.run("SELECT range FROM range(300000)")
    rows = next(result).num_rows
    assert session.touched("SELECT * FROM events") == ["events"]
    assert session.coverage_lines(["events"])
    assert rows + sum(batch.num_rows for batch in result) == 300_000


def test_memory_is_bounded(trace_path: Path) -> None:
    """A query that needs more than it may have says so; what was spilled is removed."""
    with Session.open(trace_path, threads=1, memory_limit="30MB") as session:
        scratch = session._scratch.path
        with pytest.raises(MegascopeError, match="--memory") as refused:
            session.run("SELECT list(range) FROM range(50000000)").read_all()
        assert refused.value.code == Exit.FAILED
        rows = session.run("SELECT range FROM range(5000000) ORDER BY hash(range)")
        assert sum(batch.num_rows for batch in rows) == 5_000_000
        assert scratch.is_dir()
    assert not scratch.exists()


def test_limits_are_checked(trace_path: Path) -> None:
    """A limit that is none is a usage error."""
    with pytest.raises(Usage, match="0 is no number of threads"):
        Session.open(trace_path, threads=0)
    with pytest.raises(Usage, match="give a memory limit such as 2GB"):
        Session.open(trace_path, memory_limit="much")


def test_types_that_arrow_would_change_are_refused(session: Session) -> None:
    """UHUGEINT arrived as -1, BIT as its inner bytes, TIMETZ without its zone: better no answer."""
    for sql in (
        "SELECT 340282366920938463463374607431768211455::UHUGEINT AS x",
        "SELECT [1::UHUGEINT] AS x",
        "SELECT {'a': '101'::BIT} AS x",
        "SELECT '01:02:03+01'::TIMETZ AS x",
    ):
        with pytest.raises(MegascopeError, match=r"column x is .*, which Arrow lacks; cast it to VARCHAR"):
            session.run(sql)
    assert session.run("SELECT '101'::BIT::VARCHAR AS x").read_all()["x"].to_pylist() == ["101"]


def test_damaged_part_is_left_out_and_said(tmp_path: Path) -> None:
    """A flipped byte in a part would be another number to DuckDB; here its rows are missing, and every line says so."""
    path = recordings.sealed(tmp_path / "x.mscope")
    part = next((path / "events").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)
    with Session.open(path, threads=1) as session:
        assert session.run("SELECT count(*) AS n FROM events").read_all()["n"].to_pylist() == [0]
        lines = session.coverage_lines(["events"])
    assert "coverage 0 % of the whole trace" in lines[0]
    assert "damaged: 240 rows of events cannot be read" in lines[0]
    assert any("fails its checksum (240 rows)" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("* REPLACE (CAST(tile AS VARCHAR) AS tile)", "column tile is VARCHAR, not BIGINT"),
        ("* REPLACE (CAST(flags AS DOUBLE) AS flags)", "column flags is DOUBLE, not SMALLINT"),
        ("* REPLACE (CAST(t AS VARCHAR) AS t)", "cannot read events"),
        ("* EXCLUDE (hook)", 'Referenced column "hook" not found'),
    ],
)
def test_part_of_other_columns_is_refused(columns: str, why: str, tmp_path: Path) -> None:
    """A part that lies about its types, with every checksum right, is refused by name of the column."""
    path = recordings.sealed(tmp_path / "x.mscope")
    part = next((path / "events").glob("*.parquet"))
    forged = tmp_path / "forged.parquet"
    duckdb.sql(f"COPY (SELECT {columns} FROM read_parquet('{part}')) TO '{forged}' (FORMAT parquet)")
    part.write_bytes(forged.read_bytes())
    content = manifest.read(path)
    content["streams"]["events"]["parts"][0] |= {"bytes": part.stat().st_size, "crc32": zlib.crc32(part.read_bytes())}
    manifest.write(path, content)
    with Session.open(path, threads=1) as session, pytest.raises(MegascopeError, match=why) as refused:
        session.run("SELECT count(*) FROM events").read_all()
    assert "run megascope check" in str(refused.value)


@pytest.mark.parametrize("seed", range(15))
def test_mutated_part_taken_on_trust(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts too large to be verified first: whatever their bytes are, rows or one line, and a note that says so."""
    monkeypatch.setattr(inputs, "VERIFY_BYTES", 0)
    path = recordings.sealed(tmp_path / "x.mscope")
    part = next((path / "events").glob("*.parquet"))
    content, random = bytearray(part.read_bytes()), Random(seed)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(content)) if random.random() < 0.5 else -1 - random.randrange(3000)
        content[max(at, -len(content))] = random.randrange(256)
    part.write_bytes(content)
    with Session.open(path, threads=1, memory_limit="500MB") as session:
        try:
            session.run("SELECT sum(t), count(class), max(aux), max(selection) FROM events", timeout=20).read_all()
        except MegascopeError as refused:
            assert len(str(refused).splitlines()) == 1
            assert str(refused).isprintable()
        else:
            assert "trace: checksums of 0 MB were not compared" in session.coverage_lines(["events"])[-1]


def test_part_cut_behind_the_session(tmp_path: Path) -> None:
    """A part that is destroyed while a session is open is a clear error, not an empty answer."""
    path = recordings.sealed(tmp_path / "x.mscope")
    with Session.open(path, threads=1) as session:
        part = next((path / "events").glob("*.parquet"))
        session.run("SELECT count(*) FROM events").read_all()
        part.write_bytes(b"PAR1" + b"\xff" * 2000 + b"PAR1")
        with pytest.raises(MegascopeError, match="cannot") as refused:
            session.run("SELECT sum(t) FROM events").read_all()
    assert "\n" not in str(refused.value)


def test_not_a_trace(tmp_path: Path) -> None:
    """What is no trace is refused when it is opened."""
    for path in (tmp_path, tmp_path / "missing", Path(__file__)):
        with pytest.raises(Refused):
            Session.open(path)


def test_variables_of_the_caller_are_not_tables(session: Session) -> None:
    """DuckDB would look through the stack of Python for a table of that name."""
    frame = pa.table({"a": [1]})
    with pytest.raises(MegascopeError, match="there is no view frame"):
        session.run("SELECT * FROM frame")
    with pytest.raises(duckdb.CatalogException):
        session._con.execute("SELECT * FROM frame")
    assert frame.num_rows == 1
