"""Recording and reading back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from made_traces import (
    GIVEN,
    all_events,
    expected_keys,
    keys,
    record,
    request,
    ring_rows,
    summaries,
    task_classes,
    truth,
)

from megascope.store import snapshot, stored
from megascope.store.check import check
from megascope.store.directory import check_room
from megascope.store.errors import Refused
from megascope.store.tables import DERIVED, EVENTS, LOSS, SIDE_TABLES, STREAMS
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small")


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    record(path, 2345)
    trace = Trace.open(path)
    assert (trace.state, trace.notes) == ("sealed", [])
    assert trace.manifest["end"] == {"reason": "the engine ended", "t": 10**9}
    assert trace.manifest["engine"] == GIVEN["engine"]
    assert trace.tail("events").num_rows == 0
    got = all_events(trace)
    assert got.schema == EVENTS.schema
    order = [("rank", "ascending"), ("worker", "ascending"), ("seq", "ascending")]
    assert got.sort_by(order).equals(truth(2345))
    for stream, expected in summaries(2345).items():
        (part,) = trace.verified(stream)
        assert pq.read_table(part.path).replace_schema_metadata(None).equals(pa.Table.from_batches([expected]))
    assert trace.table("task_classes").equals(task_classes())
    assert trace.table("requests").equals(pa.Table.from_batches([request(1, 7), request(2, 2)]))
    for table in SIDE_TABLES:
        assert trace.table(table.name).schema == table.schema
    assert not (path / "spool").exists()
    report = check(path)
    assert report.clean
    assert not report.findings
    assert report.rows["events"] == 2345


def test_parts_are_windows_of_arrival_ordered_inside(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    record(path, 3000)
    parts = Trace.open(path).parts("events")
    assert len(parts) > 3
    assert sum(p.rows for p in parts) == 3000
    first = 0
    for part in parts:
        rows = pq.read_table(part.path)
        assert rows["t"].combine_chunks().to_pylist() != sorted(rows["t"].to_pylist())
        assert rows.num_rows == part.rows
        assert (min(rows["t"].to_pylist()), max(rows["t"].to_pylist())) == (part.t_min, part.t_max)
        assert set(rows["task"].to_pylist()) == set(range(first, first + part.rows))
        where = list(zip(*(rows[c].to_pylist() for c in ("rank", "worker", "seq")), strict=True))
        assert where == sorted(where)
        first += part.rows


def test_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "ROW_GROUP", 64)
    record(tmp_path / "a.mscope", 390)
    (part,) = Trace.open(tmp_path / "a.mscope").parts("events")
    groups = pq.read_metadata(part.path)
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [64] * 6 + [6]


def test_spool_opens_in_any_arrow_reader(tmp_path: Path) -> None:
    w = record(tmp_path / "a.mscope", 120, finish=False)
    (file,) = (tmp_path / "a.mscope/spool").glob("events-*.arrows")
    with pa.ipc.open_stream(file) as stream:
        assert sum(b.num_rows for b in stream) == 120
    w.close()


def test_live_trace_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Every snapshot holds each row once and no less than the one before, wherever sealing was at that moment."""
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {})
    acknowledged = [0]
    stop = threading.Event()
    failures: list[str] = []
    snapshots = [0]

    def watch() -> None:
        before = 0
        while not stop.is_set():
            least = acknowledged[0]
            with Trace.open(path) as trace:
                counted = keys(all_events(trace))
            if max(counted.values(), default=1) > 1 or counted.total() < max(least, before):
                failures.append(f"{counted.total()} rows of {least}, most {max(counted.values())}")
                return
            before = counted.total()
            snapshots[0] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    rows = 0
    while snapshots[0] < 20 and not failures and rows < 60_000:
        w.append("events", ring_rows(rows, 97))
        w.flush()
        rows += 97
        acknowledged[0] = rows
    stop.set()
    watcher.join()
    w.finish("done")
    assert not failures
    assert snapshots[0] >= 5
    assert keys(all_events(Trace.open(path))) == expected_keys(rows)


def test_a_snapshot_outlives_the_sealing_of_its_spool(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = record(path, 130, finish=False)
    trace = Trace.open(path)
    assert trace.state == "recording"
    w.finish("done")
    assert trace.tail("events").num_rows == 130
    assert trace.parts("events") == []
    again = Trace.open(path)
    assert (again.state, again.tail("events").num_rows, again.parts("events")[0].rows) == ("sealed", 0, 130)


def test_a_spool_file_that_has_only_begun_is_not_missed(tmp_path: Path) -> None:
    """Its writer creates the sums first; without any sum in them nothing of it is lost."""
    path = tmp_path / "a.mscope"
    record(path, 150, finish=False).close()
    last = max((path / "spool").glob("events-*.sums"))
    begun = last.with_name(f"events-{int(last.stem[-6:]) + 1:06d}.sums")
    before = Trace.open(path).notes
    begun.touch()
    assert Trace.open(path).notes == before
    begun.write_bytes(last.read_bytes()[:32])
    assert any(f"{begun.stem}.arrows was left out" in note for note in Trace.open(path).notes)


def test_tail_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = record(tmp_path / "a.mscope", 190, batch=10, finish=False)
    monkeypatch.setattr(snapshot, "TAIL_BYTES", 128 * 60)
    trace = Trace.open(tmp_path / "a.mscope")
    tail = trace.tail("events")
    assert set(tail["task"].to_pylist()) == set(range(190 - tail.num_rows, 190))
    assert 0 < tail.num_rows <= 60
    assert any(f"oldest {190 - tail.num_rows} rows" in n for n in trace.notes)
    w.close()


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    record(path, 10)
    with pytest.raises(Refused, match="it exists; use --force"):
        TraceWriter.create(path, GIVEN, {})
    record(path, 20, force=True)
    assert Trace.open(path).parts("events")[0].rows == 20
    assert sorted(e.name for e in tmp_path.iterdir()) == ["a.mscope"]


@pytest.mark.parametrize("kind", ["file", "folder", "link", "trace with a stranger", "live"])
def test_force_removes_traces_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.mscope"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("precious")
    elif kind == "link":
        record(tmp_path / "b.mscope", 10)
        path.symlink_to(tmp_path / "b.mscope")
    else:
        w = record(path, 10, finish=kind != "live")
        if kind != "live":
            (path / "thesis.tex").write_text("precious")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(Refused):
        TraceWriter.create(path, GIVEN, {}, force=True)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    if kind == "live":
        w.close()


def test_nothing_is_left_of_a_trace_that_could_not_be_created(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="hooks"):
        TraceWriter.create(tmp_path / "a.mscope", {"engine": {"exported_hooks": ["nonsense"]}}, {})
    with pytest.raises(Refused, match="not declared"):
        TraceWriter.create(tmp_path / "a.mscope", {}, {"task_classes": pa.table({"id": [1]})})
    with pytest.raises(Refused, match="state is not the recorder's"):
        TraceWriter.create(tmp_path / "a.mscope", {"state": "sealed"}, {})
    assert list(tmp_path.iterdir()) == []


def test_update_merges_and_guards(tmp_path: Path) -> None:
    w = TraceWriter.create(tmp_path / "a.mscope", GIVEN, {})
    w.update(engine={"policy": "drop"}, clock={"fits": [{"host_ns": 1, "device_ns": 2, "error_ns": 3}]})
    m = Trace.open(tmp_path / "a.mscope").manifest
    assert m["engine"] == GIVEN["engine"] | {"policy": "drop"}
    assert m["clock"]["fits"][0]["device_ns"] == 2
    with pytest.raises(Refused):
        w.update(state="sealed")
    with pytest.raises(Refused):
        w.update(engine={"pid": 1 << 80})
    assert Trace.open(tmp_path / "a.mscope").manifest == m
    w.close()


def test_wrong_rows_are_refused(tmp_path: Path) -> None:
    w = TraceWriter.create(tmp_path / "a.mscope", GIVEN, {})
    with pytest.raises(Refused):
        w.append("events", summaries(1)["coverage"])
    with pytest.raises(Refused):
        w.append("requests", request(1, 1))
    with pytest.raises(Refused):
        w.upsert("workers", request(1, 1))
    with pytest.raises(KeyError):
        w.lose("bad luck", 1)
    w.close()


def test_counters(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = record(path, 190, finish=False)
    assert (w.rows["events"], w.rows["loss"], w.rows["requests"]) == (190, 1, 3)
    assert w.sealing_lag_rows == 190
    on_disk = sum(
        f.stat().st_size for f in path.rglob("*") if f.is_file() and f.name not in ("manifest.json", "reserve")
    )
    assert w.bytes_written == on_disk
    w.finish("done")
    assert (w.sealing_lag_rows, w.bytes_written) == (0, sum(f.stat().st_size for f in path.rglob("*.parquet")))


def test_saturated_since_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "a.mscope"
    w = TraceWriter.create(path, GIVEN, {})
    rows = ring_rows(0, 300).to_pydict()
    rows["t"] = [5_000_000_000 + i for i in range(300)]
    rows["aux"] = [1 if i % 3 == 0 else 4_999_999_999 for i in range(300)]
    w.append("events", pa.RecordBatch.from_pydict(rows, schema=ring_rows(0, 1).schema))
    w.finish("done")
    (part,) = Trace.open(path).verified("loss")
    (loss,) = pq.read_table(part.path).to_pylist()
    assert (loss["kind"], loss["count"], loss["severity"]) == ("since_saturated", 100, "info")
    assert loss.keys() == set(LOSS.names)
    assert {s.name for s in (*STREAMS, *DERIVED)} == set(check(path).rows)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_descriptors_and_threads_do_not_leak(tmp_path: Path) -> None:
    record(tmp_path / "warm.mscope", 500)
    before, threads = descriptors(), threading.active_count()
    for i in range(5):
        record(tmp_path / f"{i}.mscope", 500)
        with Trace.open(tmp_path / f"{i}.mscope") as trace:
            trace.tail("events")
    assert (descriptors(), threading.active_count()) == (before, threads)


def test_no_directory_is_made_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in the path is refused before anything begins, and so is a place that may not be written to."""
    for path in (tmp_path / "no" / "a.mscope", tmp_path / "no" / "way" / "a.mscope"):
        for refuse in (lambda p: check_room(p, False), lambda p: TraceWriter.create(p, GIVEN, {})):
            with pytest.raises(Refused, match=r"there is no directory .*; create it first"):
                refuse(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="there is no directory"):
        check_room(tmp_path / "file" / "a.mscope", False)
    # Not by its mode: root may write to any.
    monkeypatch.setattr(os, "access", lambda *_: False)
    for force in (False, True):
        with pytest.raises(Refused, match="may not be written to; choose another"):
            check_room(tmp_path / "a.mscope", force)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
