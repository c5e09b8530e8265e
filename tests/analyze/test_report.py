"""The verb `report`: what it says first, in which forms, of which stretch of time."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asked_runs
import numpy as np
import pyarrow.parquet as pq
import pytest
import recordings

from megascope.analyze.report import ORDER, ask, parse_report, reports
from megascope.analyze.report_verb import Report
from megascope.analyze.sandbox import TABLE_FUNCTIONS
from megascope.analyze.session import Session
from megascope.store import tables
from megascope.store.errors import Exit, MegascopeError, Refused, Usage


def run(*args: str) -> int:
    """Parse and run as `megascope report` does."""
    parser = argparse.ArgumentParser()
    Report.add_arguments(parser)
    return Report.run(parser.parse_args(list(args)))


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, a fifth of whose events were lost."""
    path = tmp_path_factory.mktemp("lossy") / "x.mscope"
    asked_runs.record(path, asked_runs.SMALL + ",steps=40,ranks=2,lose=0.2")
    return path


@pytest.mark.parametrize("record", [recordings.empty, recordings.sealed, recordings.unsealed])
def test_columns_are_as_declared(record: Callable[[Path], Path], tmp_path: Path) -> None:
    """Names and types, on a trace of every state; and every one of them answers."""
    with Session.open(record(tmp_path / "x.mscope"), threads=1) as session:
        for name, report in reports().items():
            described = session.run(f"DESCRIBE {report.sql}").read_all()
            found = zip(described["column_name"].to_pylist(), described["column_type"].to_pylist(), strict=True)
            plain = [(n, "STRUCT" if t.startswith("STRUCT(") else t) for n, t in found]
            assert plain == [(c.name, c.type) for c in report.columns], name
            assert ask(session, name).rows.column_names == [n for n, _ in plain]


def test_every_report_is_there_and_says_what_it_means() -> None:
    """The seven, in their order, each column with its meaning."""
    assert list(reports()) == list(ORDER)
    for report in reports().values():
        assert report.meaning.endswith(".")
        assert all(c.meaning for c in report.columns)
        assert all(c.unit or not c.name.endswith(("_ns", "_ms")) for c in report.columns)


def test_portable_reports_keep_to_common_sql() -> None:
    """No functions of ours or of DuckDB alone, no double quotes that elsewhere are text, no lists."""
    plain = {"sum", "min", "max", "cast", "coalesce", "count", "row_number", "when", "and", "in", "as", "by", "over"}
    portable = [r for r in reports().values() if r.portable]
    assert {r.name for r in portable} == {"requests", "steps", "workers", "losses"}
    for report in portable:
        called = {word.lower() for word in re.findall(r"(\w+)\s*\(", report.sql)}
        assert called <= plain, report.name
        assert not any(mark in report.sql for mark in ('"', "::", "[", "{", "//")), report.name
        assert not called & TABLE_FUNCTIONS


def test_overview_says_selection_coverage_and_loss_first(lossy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Above the table for whoever reads, and as its first rows for whoever parses."""
    assert run(str(lossy)) == Exit.DONE
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[0].startswith("overview: ")
    assert lines[1].startswith("window: ")
    assert any("selection all · coverage " in line for line in lines[2:5])
    assert any(line.startswith("loss: known losses: queue_full") for line in lines[2:10])
    with Session.open(lossy, threads=1) as session:
        rows = ask(session, "overview").rows.to_pylist()
    sections = list(dict.fromkeys(row["section"] for row in rows))
    assert sections == ["selection", "coverage", "loss", "trace", "work", "latency", "classes", "waits"]
    assert [row["value"] for row in rows[:1]] == ["all"]
    facts = {(row["section"], row["item"]): row["value"] for row in rows}
    low, high = (int(n) for n in facts["work", "tasks"].split(" … "))
    assert low < high
    assert facts["work", "steps"] == "40"


def test_overview_tells_programs_of_one_name_apart(tmp_path: Path) -> None:
    """By number: what one of them missed is not what both did."""
    programs = [
        {"program": n, "name": name, "selection": "escalated(p)", "source": "", "hash": "", "slot": n - 1}
        for n, name in ((2, "lat"), (3, "lat"), (4, "other"))
    ]
    writer = recordings.begin(tmp_path / "x.mscope", programs=[recordings.RECORDER_PROGRAM, *programs])
    flows = [recordings.flow(100, program=n, lost=lost, epoch=n) for n, lost in ((1, 0), (2, 50), (3, 0))]
    writer.append("coverage", recordings.rows(tables.COVERAGE, *flows))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        rows = ask(session, "overview").rows.to_pylist()
    assert [r["item"] for r in rows if r["section"] == "selection"] == ["recorder", "lat (2)", "lat (3)", "other"]
    assert {r["item"]: r["value"] for r in rows if r["section"] == "coverage" and "lat" in r["item"]} == {
        "lat (2)": "50.00 %: 50 of 100 eligible events observed, of epoch 2, 50 rows written",
        "lat (3)": "100.00 %: 100 of 100 eligible events observed, of epoch 3, 100 rows written",
    }


def test_text_shows_bounds(lossy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As ranges, one-sided, or refused; with a limit that says so."""
    run("classes", str(lossy), "--limit", "3")
    out = capfd.readouterr().out
    assert " … " in out
    assert "refused: " in out
    assert ">3 of " in out
    assert "null" not in out


def test_json_is_one_object(lossy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With what the rows stand for in it, whole unless limited."""
    run("classes", str(lossy), "-f", "json")
    told = json.loads(capfd.readouterr().out)
    assert (told["report"], told["window"][0]) == ("classes", 1_000_000)
    assert told["stands_for"][0].startswith("tasks: selection all · coverage ")
    assert list(told["rows"][0]) == list(told["columns"])
    assert told["rows"][0]["tasks"].keys() == {"low", "high"}
    assert told["columns"]["exec_p50"]["unit"] == "ns"
    run("classes", str(lossy), "-f", "json", "--limit", "0")
    assert json.loads(capfd.readouterr().out)["rows"] == []


def test_parquet_carries_what_it_stands_for(lossy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In the file's metadata; the ending picks the format; nothing is overwritten unasked."""
    out = tmp_path / "w.parquet"
    assert run("workers", str(lossy), "-o", str(out)) == Exit.DONE
    assert capfd.readouterr() == ("", f"wrote the report workers to {out}\n")
    table = pq.read_table(out)
    about = json.loads(table.schema.metadata[b"megascope.report"])
    assert about["stands_for"][0].startswith("workers: selection all")
    assert table.column_names == list(about["columns"])
    with pytest.raises(Refused, match="it exists"):
        run("workers", str(lossy), "-o", str(out))
    with pytest.raises(Refused, match="it lies in the trace"):
        run("workers", str(lossy), "-o", str(lossy / "w.parquet"))
    assert run("workers", str(lossy), "-o", str(out), "--force") == Exit.DONE


def test_from_and_to(lossy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Device time and time since the begin name the same stretch."""
    run("steps", str(lossy), "-f", "json", "--from", "+0.2ms", "--to", "1500000")
    told = json.loads(capfd.readouterr().out)
    assert told["window"] == [1_200_000, 1_500_000]
    run("steps", str(lossy), "-f", "json")
    whole = json.loads(capfd.readouterr().out)["rows"]
    inside = [row["step"] for row in whole if 1_200_000 <= row["t_begin"] < 1_400_000]
    assert set(inside) <= {row["step"] for row in told["rows"]}
    assert len(told["rows"]) < len(whole)
    with pytest.raises(Usage, match="no stretch of time"):
        run("steps", str(lossy), "--from", "+2ms", "--to", "+1ms")
    with pytest.raises(Refused, match="was not fitted"):
        run("steps", str(lossy), "--from", "2026-01-01T00:00:00Z")


def test_wall_clock(trace_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """UTC becomes device time, and the note says how sure that is."""
    run("losses", str(trace_path), "-f", "json", "--from", "2023-11-14T22:13:20.000001Z")
    out, err = capfd.readouterr()
    assert json.loads(out)["window"][0] in range(990, 1010)
    assert "ns of device time (within " in err


def test_workers_bounds_hold_the_truth(tmp_path: Path) -> None:
    """How busy each was lies between the two shares, with a third of the events lost."""
    spec = asked_runs.SMALL + ",steps=40"
    asked_runs.record(tmp_path / "whole", spec)
    asked_runs.record(tmp_path / "lossy", spec + ",lose=0.33")
    with Session.open(tmp_path / "whole", threads=1) as whole, Session.open(tmp_path / "lossy", threads=1) as lossy:
        span = whole.span()
        assert span is not None
        lossy.window(*span)
        true = {row["worker"]: row["busy_low"] for row in ask(whole, "workers").rows.to_pylist()}
        for row in ask(lossy, "workers").rows.to_pylist():
            assert row["busy_low"] <= true[row["worker"]] <= row["busy_high"] + 1e-9
            assert row["lost"] > 0


def test_a_wait_counts_as_long_as_it_lay_in_the_window(tmp_path: Path) -> None:
    """One that began before the first event, and one that nobody ended: no kind waits longer than there was time."""
    writer = recordings.begin(tmp_path / "x.mscope")
    # The resume, at 1010, tells of a wait since 20; the other wait begins at 1020.
    rows = {"hook": [7, 6, 5, *[7] * 97], "worker": [2, 0, 1, *[2] * 97], "seq": [1, 1, 1, *range(2, 99)]}
    aux, t = [1, 20, 4 << 32 | 5, *[1] * 97], np.arange(1000, 2000, 10)
    writer.append("events", recordings.ring_rows(100, **rows, aux=aux, t=t, dep=1, task=7, task_class=1))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        (told,) = ask(session, "waits").rows.to_pylist()
        assert (told["waits"]["low"], told["wait_ms"]) == (1, (10 + 971) / 1e6)
        assert told["p50"]["low"] == 990
        facts = {r["item"]: r["value"] for r in ask(session, "overview").rows.to_pylist()}
        assert facts[told["kind"]] == "1 waits, 0.001 ms, 1 not ended"
        session.window(1500, 1600)
        (told,) = ask(session, "waits").rows.to_pylist()
        assert (told["waits"]["low"], told["wait_ms"]) == (0, 100 / 1e6)
        assert told["p50"]["refused"] == "nothing was observed"


def test_text_has_units_and_no_digits_that_nobody_reads(lossy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Shares are cut to the side on which they stay true; JSON keeps every digit."""
    run("overview", str(lossy))
    times = [line for line in capfd.readouterr().out.splitlines() if line.startswith("latency")]
    assert times
    assert all(line.endswith((" ns", " seen")) or "refused" in line for line in times)
    run("workers", str(lossy), "-f", "json")
    exact = {row["worker"]: row for row in json.loads(capfd.readouterr().out)["rows"]}
    assert any(len(str(row["busy_low"])) > 10 for row in exact.values())
    run("workers", str(lossy))
    lines = capfd.readouterr().out.splitlines()
    names = next(line.split() for line in lines if line.startswith("worker "))
    for line in lines[-len(exact) :]:
        shown = dict(zip(names, line.split(), strict=True))
        row = exact[int(shown["worker"])]
        assert row["busy_low"] - 2e-6 < float(shown["busy_low"]) <= row["busy_low"]
        assert row["busy_high"] <= float(shown["busy_high"]) < row["busy_high"] + 2e-6
        assert max(len(shown[name].partition(".")[2]) for name in names) <= 6


def test_escalated_rows_are_no_distribution(tmp_path: Path) -> None:
    """They are counted as what they are; no quantile is taken of them, in no report."""
    programs = [{"program": 2, "name": "slow", "selection": "escalated(slow)", "source": "", "hash": ""}]
    writer = recordings.begin(tmp_path / "x.mscope", programs)
    writer.append("events", recordings.ring_rows(24_000, by=2))
    writer.append("coverage", recordings.rows(tables.COVERAGE, recordings.flow(48_000, program=2, written=24_000)))
    writer.finish("ended")
    with Session.open(writer.path, threads=1) as session:
        classes = ask(session, "classes")
        assert classes.rows.num_rows > 0
        for row in classes.rows.to_pylist():
            assert row["selection"] == "escalated(slow)"
            assert row["tasks"]["low"] > 0
            assert row["tasks"]["high"] is None
            for name in ("exec_p50", "exec_p90", "exec_p99", "queue_p50", "queue_p99"):
                assert (row[name]["refused"], row[name]["low"]) == ("escalated(slow) is no population", None)
        assert any("rows are no population" in line for line in classes.lines)
        for row in ask(session, "waits").rows.to_pylist():
            assert row["p50"]["refused"]
            assert row["waits"]["high"] is None
        for row in ask(session, "overview").rows.to_pylist():
            assert row["bounds"] is None or row["bounds"]["refused"]


def test_unknown_report(tmp_path: Path) -> None:
    """Says which it might have been, before the trace is looked at."""
    with pytest.raises(Usage, match="there is no such report; did you mean classes"):
        run("clases", str(tmp_path))


def test_sql_behind_a_report(trace_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Can be asked as it stands."""
    with Session.open(trace_path, threads=1) as session:
        for name in ("classes", "workers", "losses"):
            run(name, str(trace_path), "--sql")
            assert session.run(capfd.readouterr().out).read_all().equals(ask(session, name).rows)
    assert not [name for name, report in reports().items() if report.sql.startswith("--")]


def test_header_is_checked() -> None:
    """A slip in a report's file is found when it is read."""
    with pytest.raises(ValueError, match="unknown header key 'coverage'"):
        parse_report("x", "-- meaning: A.\n-- coverage: rows\n-- column: a BIGINT: b\n\nSELECT 1 AS a")


def test_damage_is_one_line(tmp_path: Path) -> None:
    """A report over parts that cannot be read is an error of one line, or says what was left out."""
    path = recordings.sealed(tmp_path / "x.mscope")
    for part in path.rglob("*.parquet"):
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 0xFF
        part.write_bytes(content)
    with Session.open(path, threads=1) as session:
        for name in ORDER:
            try:
                answer = ask(session, name)
            except MegascopeError as error:
                assert len(str(error).splitlines()) == 1
            else:
                assert any("left out" in line for line in answer.lines), name


def test_help_loads_nothing_heavy() -> None:
    """Of this verb neither."""
    code = (
        "import sys, megascope.analyze.report_verb as v; print(*({'duckdb', 'pyarrow', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
