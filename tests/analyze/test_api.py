"""The Python interface: lazily, in each form, and the worked example of the documentation as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import asked_runs
import polars as pl
import pyarrow as pa
import pytest
import recordings

import megascope
from megascope import __main__ as main
from megascope.analyze.catalogue import views
from megascope.store.errors import MegascopeError, Refused, Usage

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the host engine with a little loss."""
    path = tmp_path_factory.mktemp("api") / "run.mscope"
    asked_runs.record(path, asked_runs.SMALL + ",steps=40,lose=0.02")
    return path


def test_worked_example(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/python.md, block after block, on a recording of that name."""
    monkeypatch.chdir(path.parent)
    names: dict[str, object] = {}
    assert len(EXAMPLES) >= 6
    for block in EXAMPLES:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("overview: ")
    assert "tasks: selection all · coverage 9" in out
    neighbours = names["neighbours"]
    assert isinstance(neighbours, pl.DataFrame)
    assert names["slowest"] in neighbours["class"].to_list()
    ((starved, late, _),) = names["starved"]  # type: ignore[misc]
    assert starved + late > 0


def test_every_form_has_the_same_rows(path: Path) -> None:
    """Arrow, polars, lazy, batches, a relation, and whoever takes Arrow streams."""
    with megascope.open(path, threads=1) as run:
        query = run.sql("SELECT task, class, exec_ns, start FROM tasks ORDER BY task -- the end")
        table = query.arrow()
        frame = pl.DataFrame(table)
        assert table.num_rows > 1000
        assert query.schema == table.schema
        assert query.polars().equals(frame)
        assert query.lazy().collect().equals(frame)
        assert pa.Table.from_batches(query.batches()).equals(table)
        assert query.relation().to_arrow_table().equals(table)
        assert pl.DataFrame(query).equals(frame)
        assert pa.table(query).equals(table)


def test_lazy_frames_answer_like_whole_ones(path: Path) -> None:
    """Columns, predicates and limits may be pushed down; the answer is the same."""
    slow = pl.col("exec_ns") > 600
    with megascope.open(path, threads=1) as run:
        query = run.sql("SELECT * FROM tasks ORDER BY task")
        whole, lazy = query.polars().lazy(), query.lazy()
        for ask in (
            lambda f: f.filter(slow).head(7),
            lambda f: f.head(50).filter(slow),
            lambda f: f.select("class", "exec_ns").filter(slow).tail(3),
            lambda f: f.filter(slow).select(pl.col("start").max()),
            lambda f: f.select(pl.len()),
            lambda f: f.slice(10, 5).select("task"),
            lambda f: f.group_by("class").agg(pl.col("queue_ns").sum()).sort("class"),
        ):
            assert ask(lazy).collect().equals(ask(whole).collect())


def test_lazy_reads_only_what_it_needs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing when it is made; then the columns that are asked for."""
    asked: list[str] = []
    with megascope.open(path, threads=1) as run:
        session = run.session
        original = session.run
        monkeypatch.setattr(session, "run", lambda sql, **how: (asked.append(sql), original(sql, **how))[1])
        frame = run.events().lazy()
        assert all("LIMIT 0" in sql for sql in asked)
        asked.clear()
        frame.select("t", "hook").head(3).collect()
    assert len(asked) == 1
    assert asked[0].startswith('SELECT "t", "hook" FROM (')
    assert asked[0].endswith("LIMIT 3")


def test_every_view(path: Path) -> None:
    """By name and by method."""
    with megascope.open(path, threads=1) as run:
        assert run.views == list(views())
        for name in run.views:
            assert run.view(name).schema.names == [c.name for c in views()[name].columns]
        for name in ("events", "tasks", "waits", "requests", "steps", "workers", "coverage", "loss"):
            assert getattr(run, name)().text == run.view(name).text
        with pytest.raises(Usage, match="cannot show evnts: there is no such view"):
            run.view("evnts")


def test_windows(path: Path) -> None:
    """In ns and as text; every query that is read then looks through it."""
    with megascope.open(path, threads=1) as run:
        query = run.sql("SELECT min(t) AS a, max(t) AS b FROM events")
        run.window("+0.5ms", 1_600_000)
        (row,) = query.arrow().to_pylist()
        assert 1_500_000 <= row["a"] < row["b"] < 1_600_000
        assert "from 1500000 to 1600000 ns" in repr(run.report("steps"))
        run.window()
        assert query.arrow().to_pylist()[0]["a"] == 1_000_000
        with pytest.raises(Usage, match="after the trace's end"):
            run.window("+5s")


def test_reports(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows in each form, and the text that the command line prints."""
    with megascope.open(path, threads=1) as run:
        report = run.report("classes")
        assert (report.name, report.arrow().num_rows) == ("classes", report.polars().height)
        assert report.stands_for[0] in repr(report)
        main.run(["report", "classes", str(path), "--threads", "1"])
        assert capfd.readouterr().out == repr(report)
        with pytest.raises(Usage, match="did you mean losses"):
            run.report("loses")


def test_errors_come_early_and_say_what(path: Path, tmp_path: Path) -> None:
    """A text that is refused, when it is given; a recording that was closed; a path that is none."""
    with megascope.open(path, threads=1) as run:
        with pytest.raises(Refused, match="it must be a SELECT"):
            run.sql("DROP TABLE events")
        with pytest.raises(MegascopeError, match="took longer than"):
            run.sql("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b").arrow(timeout=0.1)
        query = run.tasks()
        assert "sealed" in repr(run)
    run.close()
    assert repr(run) == "<Recording, closed>"
    for ask in (query.arrow, lambda: query.schema, run.tasks().relation, lambda: run.report()):
        with pytest.raises(Usage, match="the recording was closed"):
            ask()
    with pytest.raises(Refused, match="there is no"):
        megascope.open(tmp_path / "none")


def test_a_recording_that_goes_on(tmp_path: Path) -> None:
    """As it was when it was opened."""
    writer = recordings.begin(tmp_path / "x.mscope")
    recordings.fill(writer)
    with megascope.open(writer.path, threads=1) as run:
        assert run.events().arrow().num_rows == 240
        assert run.tasks().stands_for[0].endswith("trace still being recorded")
    writer.finish("ended")


def test_import_loads_nothing() -> None:
    """`import megascope` is what the command line does first."""
    code = "import sys, megascope; print(*({'duckdb', 'pyarrow', 'numpy', 'polars'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
