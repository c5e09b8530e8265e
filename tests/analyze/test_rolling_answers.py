"""Answers from a rolling recording: what was retired is missing there, where it was retired, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import recordings

from megascope.analyze.report import reports
from megascope.analyze.session import Session
from megascope.store import retention, retiring, tables
from megascope.store.check import check
from megascope.store.errors import MegascopeError
from megascope.store.trace import Trace, TraceWriter

ROWS, BATCH, KEEP = 20_000, 500, 2_000


def rolled(path: Path) -> TraceWriter:
    """20,000 completes, 10 ns apart, of which the last 2,000 are kept, and those from 5,000 to 5,500."""
    engine = {"name": "e", "kind": "host", "clock_kind": "virtual", "epoch_ns": 5000, "exported_hooks": ["complete"]}
    given: dict[str, Any] = {"engine": engine, "programs": [recordings.RECORDER_PROGRAM]}
    workers = recordings.rows(tables.WORKERS, *({"worker": w, "sm": w} for w in range(2)))
    w = TraceWriter.create(path, given, {"workers": pa.Table.from_batches([workers])}, keep_ns=KEEP * 10)
    w.pin(50_000, 55_000)
    for first in range(0, ROWS, BATCH):
        i = np.arange(first, first + BATCH)
        batch = recordings.ring_rows(BATCH, t=i * 10 + 10, seq=i // 2 + 1, task=i, worker=i % 2, hook=4, aux=i * 10 + 5)
        w.append("events", batch)
        t = {"t_begin": first * 10, "t_end": (first + BATCH) * 10, "epoch": first // BATCH}
        flow = recordings.flow(BATCH, hook=4) | t
        w.append("coverage", recordings.rows(tables.COVERAGE, flow))
        w.flush()
    marks = [
        {"mark": 1, "t": 52_000, "kind": "trigger", "text": "trigger", "program": 2, "firings": 9}
        | {"t_from": 50_000, "t_to": 55_000},
        *({"mark": n, "t": 1000 * n, "kind": "mark", "text": f"note {n}", "firings": 1} for n in range(2, 25)),
    ]
    w.upsert("marks", recordings.rows(tables.MARKS, *marks))
    return w


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(retiring, "_GRAIN_LEAST_S", 0.0)
    rolled(tmp_path / "a.mscope").finish("done", t=ROWS * 10)
    assert check(tmp_path / "a.mscope").findings == []
    return tmp_path / "a.mscope"


def test_what_was_retired_is_missing_where_it_was(path: Path) -> None:
    with Session.open(path, threads=1) as s:
        horizon = s.trace.manifest[retention.KEY]["horizon"]

        def one(sql: str) -> Any:
            return next(iter(s.run(sql).read_all().to_pylist()[0].values()))

        kept, gone = one("SELECT count(*) FROM events"), one("SELECT sum(count) FROM loss WHERE kind = 'retired'")
        assert kept + gone == ROWS
        assert KEEP <= kept < KEEP + 2_000
        assert one("SELECT missing_rows('complete', NULL, NULL)") == gone
        assert one(f"SELECT missing_rows('complete', {horizon}, NULL)") == 0
        assert one("SELECT missing_rows('complete', 50000, 55000)") == 0
        assert one("SELECT missing_rows('complete', 100000, 110000)") >= 1000
        lines = s.coverage_lines(["events", "loss"])
        assert any(f"{gone:,} retired" in line and f"{kept / ROWS:.1%}"[:3] in line for line in lines)
        assert f"loss: known losses: retired {gone:,} rows" in lines
        assert not any("damaged" in line for line in lines)
        assert any("a rolling recording" in line and "stands for itself" in line for line in lines)


def test_marks_are_a_view_and_in_the_overview(path: Path) -> None:
    with Session.open(path, threads=1) as s:
        first = s.run("SELECT * FROM marks ORDER BY mark").read_all().to_pylist()[0]
        assert first == {
            "mark": 1,
            "t": 52_000,
            "kind": "trigger",
            "text": "trigger",
            "program": 2,
            "firings": 9,
            "t_from": 50_000,
            "t_to": 55_000,
            "time": None,
        }
        told = s.run(reports()["overview"].sql).read_all().to_pylist()
        marks = [(r["item"], r["value"]) for r in told if r["section"] == "marks"]
        assert len(marks) == 21
        assert marks[0] == ("trigger", "9 firings, first at 52000: rows kept from 50000 to 55000")
        assert marks[1] == ("note 2", "note at 2000")
        assert marks[20] == ("more", "4: see the view marks")
        (loss,) = (r for r in told if r["section"] == "loss")
        assert "(info)" in loss["value"]


def test_a_part_that_went_while_it_was_asked_is_one_clear_line(path: Path) -> None:
    with Session.open(path, threads=1) as s, Trace.open(path) as trace:
        assert s.run("SELECT count(*) FROM events").read_all().num_rows == 1
        trace.parts("events")[0].path.unlink()
        with pytest.raises(MegascopeError, match=r"events-\d+.parquet is there no more.*; ask again") as caught:
            s.run("SELECT max(t) FROM events").read_all()
        assert caught.value.code == 1
