"""The verbs as the command line runs them: data to standard output, notes to standard error, nothing else anywhere."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import recordings

from megascope.analyze.verbs import VERBS, Schema, Sql
from megascope.store.errors import Exit, MegascopeError, Refused, Usage


def run(*args: str) -> int:
    """Parse and run as `megascope` does."""
    parser = argparse.ArgumentParser()
    chosen = parser.add_subparsers(dest="verb", required=True)
    for verb in VERBS:
        verb.add_arguments(chosen.add_parser(verb.name, help=(verb.__doc__ or "").splitlines()[0]))
    parsed = parser.parse_args(list(args))
    return {"sql": Sql, "schema": Schema}[parsed.verb].run(parsed)


def test_answer_and_notes(trace_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The answer alone on standard output."""
    assert run("sql", str(trace_path), "SELECT count(*) AS n FROM events") == Exit.DONE
    out, err = capfd.readouterr()
    assert out == "  n\n───\n240\n"
    assert err == (
        "events: selection all · coverage 92.30 % of the whole trace "
        "(observed 240 of 260 eligible; lost 20 in worker queues, 0 in the ring)\n"
    )
    run("sql", str(trace_path), "SELECT count(*) AS n FROM events", "-q")
    assert capfd.readouterr().err == ""


def test_query_from_standard_input(
    trace_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For queries longer than a line."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("-- how many\nSELECT count(*) AS n\nFROM workers;\n"))
    assert run("sql", str(trace_path), "-", "-f", "json") == Exit.DONE
    assert json.loads(capfd.readouterr().out) == {"n": 2}


def test_tables_are_cut_and_say_so(trace_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """1,000 rows of a table, all rows of everything else."""
    sql = "SELECT range AS i FROM range(1001)"
    run("sql", str(trace_path), sql)
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 1002
    assert err.startswith(">1,000 rows: the first 1,000 are shown")
    run("sql", str(trace_path), sql, "-f", "csv")
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), err) == (1002, "")
    run("sql", str(trace_path), sql, "--limit", "5", "-f", "csv")
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 6
    assert err.startswith(">5 rows")


def test_terminal(trace_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A table fits the terminal and says what did not; binary formats do not go there."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    run("sql", str(trace_path), "SELECT * FROM events LIMIT 2")
    out, err = capfd.readouterr()
    assert all(len(line) <= 60 for line in out.splitlines())
    assert "no room for " in err
    for form in ("parquet", "arrow"):
        with pytest.raises(Usage, match=f"cannot write {form} to a terminal: it is binary; give -o FILE"):
            run("sql", str(trace_path), "SELECT 1", "-f", form)
        with pytest.raises(Usage, match="it is binary"):
            run("schema", "-f", form)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_binary_through_a_pipe(form: str, trace_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Standard output that is no terminal takes bytes, and nothing but them."""
    run("sql", str(trace_path), "SELECT t FROM events", "-f", form)
    data = capfdbinary.readouterr().out
    table = pq.read_table(pa.BufferReader(data)) if form == "parquet" else pa.ipc.open_stream(data).read_all()
    assert table.num_rows == 240


def test_output_file(trace_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The ending chooses the format; the last line says what was written; nothing is overwritten unasked."""
    for name, first in (
        ("a.csv", b"t\n"),
        ("a.json", b'{"t'),
        ("a.parquet", b"PAR1"),
        ("a.arrow", b"\xff\xff\xff\xff"),
    ):
        assert run("sql", str(trace_path), "SELECT t FROM events", "-o", str(tmp_path / name)) == Exit.DONE
        out, err = capfd.readouterr()
        assert out == ""
        assert err.splitlines()[-1] == f"wrote 240 rows to {tmp_path / name}"
        assert (tmp_path / name).read_bytes().startswith(first)
    with pytest.raises(Refused, match="it exists"):
        run("sql", str(trace_path), "SELECT 1 AS x", "-o", str(tmp_path / "a.csv"))
    run("sql", str(trace_path), "SELECT 1 AS x", "-o", str(tmp_path / "a.csv"), "--force")
    assert (tmp_path / "a.csv").read_text() == "x\n1\n"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_answer_does_not_go_into_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with --force, a relative path or a symbolic link."""
    path = recordings.sealed(tmp_path / "x.mscope")
    part = next((path / "events").glob("*.parquet"))
    before = part.read_bytes()
    (tmp_path / "link").symlink_to(path / "events")
    monkeypatch.chdir(tmp_path)
    for out in (str(part), "x.mscope/new.csv", f"link/{part.name}", "link/new.csv"):
        with pytest.raises(Refused, match="it lies in the trace"):
            run("sql", "x.mscope", "SELECT 1", "-o", out, "--force")
    assert part.read_bytes() == before
    assert not (path / "new.csv").exists()
    assert not (path / "events" / "new.csv").exists()


def test_errors_come_before_output(trace_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output when a query is refused; --allow-files is what lifts one of the reasons."""
    other = tmp_path / "other.csv"
    other.write_text("a\n7\n")
    with pytest.raises(Refused, match="--allow-files lifts this"):
        run("sql", str(trace_path), f"FROM '{other}'")
    with pytest.raises(MegascopeError, match="longer than"):
        run(
            "sql",
            str(trace_path),
            "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b",
            "--timeout",
            "0.1",
        )
    assert capfd.readouterr().out == ""
    run("sql", str(trace_path), f"FROM '{other}'", "--allow-files", "-f", "csv")
    assert capfd.readouterr().out == "a\n7\n"


@pytest.mark.parametrize("option", [["--limit", "-1"], ["--timeout", "0"], ["--timeout", "nan"], ["--threads", "x"]])
def test_bad_options(option: list[str], trace_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """argparse says which."""
    with pytest.raises(SystemExit) as refused:
        run("sql", str(trace_path), "SELECT 1", *option)
    assert refused.value.code == Exit.USAGE
    assert option[0] in capfd.readouterr().err


def test_schema(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a trace, in every format."""
    run("schema", "tile_fields")
    out = capfd.readouterr().out
    assert out.startswith("tile_fields: How `tile` packs coordinates, by task class: (tile >> shift) & (2^bits - 1).\n")
    assert "\n  task_class  INTEGER         task class\n" in out
    run("schema", "-f", "json")
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {
        "view": "events",
        "column": "t",
        "type": "BIGINT",
        "unit": "ns",
        "meaning": "device time of the firing",
    } in rows
    run("schema", "-f", "markdown", "events")
    assert capfd.readouterr().out.startswith("### events\n")
    with pytest.raises(Usage):
        run("schema", "evnts")


def test_pipe_is_closed_early(trace_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`| head` ends the verb with what the command line knows how to take: BrokenPipeError, and no temporary files."""
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError):
            run("sql", str(trace_path), "SELECT range FROM range(100000)", "-f", "csv")
    with suppress(BrokenPipeError):
        out.close()


def test_verbs_load_nothing_heavy_before_they_run() -> None:
    """`megascope ls --help` does not pay for DuckDB, nor does a query load the screen or CUDA."""
    for module, heavy in (
        ("verbs", {"duckdb", "pyarrow", "numpy"}),
        ("session", {"textual", "cupy", "pycuda", "numba", "polars"}),
    ):
        code = f"import sys, megascope.analyze.{module}; print(*({heavy} & sys.modules.keys()))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
