"""check finds each kind of damage and names it; repair makes whole what can be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_traces import GIVEN, all_events, expected_keys, keys, record, ring_rows, summaries

from megascope.store import identities, manifest, sequence
from megascope.store.check import Report, check, repair
from megascope.store.errors import Refused
from megascope.store.tables import COVERAGE, EVENTS, INTERVALS, LOSS
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    record(tmp_path / "a.mscope", 1500)
    return tmp_path / "a.mscope"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A trace whose recorder died before anything was sealed."""
    path = tmp_path / "a.mscope"
    pid = os.fork()
    if pid == 0:
        try:
            w = TraceWriter.create(path, GIVEN, {})
            w._sealer.stop()
            for first in range(0, 1000, 100):
                w.append("events", ring_rows(first, 100))
            for stream, rows in summaries(1000).items():
                w.append(stream, rows)
            w.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return path


def found(report: Report, severity: str, text: str) -> bool:
    return any(f.severity == severity and text in f"{f.file}: {f.what}" for f in report.findings)


def losses(path: Path) -> list[dict[str, Any]]:
    return [r for p in Trace.open(path).verified("loss") for r in pq.read_table(p.path).to_pylist()]


def rewrite(path: Path, change: Any) -> None:
    """Change the manifest and its checksum."""
    m = manifest.read(path)
    change(m)
    manifest.write(path, m)


def replace_part(path: Path, stream: str, rows: pa.Table) -> None:
    """Put other rows in the first part of a stream, with the right size, checksum and count."""
    from megascope.store import parquet

    file = path / stream / f"{stream}-000001.parquet"
    pq.write_table(rows, file)
    size, crc = parquet.file_crc(file)
    rewrite(path, lambda m: m["streams"][stream]["parts"][0].update(bytes=size, crc32=crc, rows=rows.num_rows))


def first_part(path: Path, stream: str = "events") -> pa.Table:
    return pq.read_table(path / stream / f"{stream}-000001.parquet").replace_schema_metadata(None)


def test_sound(sealed: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = check(sealed, progress=lambda done, total: seen.append((done, total)))
    assert (report.findings, report.state, report.rows["events"]) == ([], "sealed", 1500)
    assert seen[-1][0] == seen[-1][1] == len(seen) > 5
    before = sorted((p.name, p.stat().st_mtime_ns) for p in sealed.rglob("*.parquet"))
    assert repair(sealed).findings == []
    assert sorted((p.name, p.stat().st_mtime_ns) for p in sealed.rglob("*.parquet")) == before


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "grown", "folder gone"])
def test_damaged_part(sealed: Path, damage: str) -> None:
    part = sealed / "events/events-000001.parquet"
    rows = pq.read_metadata(part).num_rows
    if damage == "missing":
        part.unlink()
    elif damage == "truncated":
        os.truncate(part, 1000)
    elif damage == "flipped":
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 4
        part.write_bytes(data)
    elif damage == "grown":
        part.write_bytes(part.read_bytes() + b"\0")
    else:
        shutil.rmtree(sealed / "events")
        rows = 1500
    report = check(sealed)
    assert found(report, "damaged", "events/events-000001.parquet: ")
    assert report.rows["events"] == 1500 - rows
    with Trace.open(sealed) as trace:
        assert all_events(trace).num_rows == 1500 - rows
        assert any("events/events-000001.parquet was left out" in n for n in trace.notes)
    repaired = repair(sealed)
    worse = [f for f in repaired.findings if f.severity != "info"]
    assert {f.severity for f in worse} == {"degraded"}
    assert sum(int(f.what.split(" rows are gone: events/events-")[0]) for f in worse) == rows
    assert sum(r["count"] for r in losses(sealed) if r["kind"] == "part_unreadable") == rows
    with Trace.open(sealed) as trace:
        assert trace.notes == []
        assert all_events(trace).num_rows == 1500 - rows
    kept = damage in ("truncated", "flipped", "grown")
    assert (sealed / "damaged/events-000001.parquet").exists() == kept
    assert repair(sealed).findings == repaired.findings


def test_missing_manifest_cannot_be_rebuilt(sealed: Path) -> None:
    (sealed / manifest.FILE).unlink()
    files = sorted(sealed.rglob("*"))
    for report in (check(sealed), repair(sealed)):
        assert (report.state, report.clean) == ("unreadable", False)
        assert "cannot be rebuilt" in report.findings[0].todo
        assert "can be read by itself" in report.findings[1].what
    assert sorted(sealed.rglob("*")) == files


def test_killed_recorder(killed: Path) -> None:
    report = check(killed)
    assert report.state == "unsealed"
    assert report.rows["events"] == 1000
    assert [f.what for f in report.findings if f.severity != "info"] == ["the trace is unsealed"]
    repaired = repair(killed)
    assert repaired.clean
    assert [f.what for f in repaired.findings] == ["the trace was repaired: its recorder left no end record"]
    assert keys(all_events(Trace.open(killed))) == expected_keys(1000)


def test_truncated_spool(killed: Path) -> None:
    last = max((killed / "spool").glob("events-*.arrows"))
    os.truncate(last, last.stat().st_size // 2)
    assert found(check(killed), "degraded", "were cut off")
    with Trace.open(killed) as trace:
        left = all_events(trace).num_rows
    assert 900 <= left < 1000
    repaired = repair(killed)
    assert all("spool" not in f.file for f in repaired.findings)
    assert [r["kind"] for r in losses(killed)] == ["spool_tail"]
    with Trace.open(killed) as trace:
        assert all_events(trace).num_rows == left


def test_garbage_in_spool(killed: Path) -> None:
    spool = killed / "spool"
    (spool / "events-000099.arrows").write_bytes(os.urandom(500))
    (spool / "events-000099.sums").write_bytes(os.urandom(500))
    (spool / "events-000098.sums").write_bytes(os.urandom(500))
    (spool / "notes.txt").write_text("hello")
    report = check(killed)
    assert not report.clean
    assert found(report, "info", "spool/notes.txt: is no file of a trace")
    repair(killed)
    with Trace.open(killed) as trace:
        assert keys(all_events(trace)) == expected_keys(1000)
        assert trace.state == "sealed"
    assert (spool / "notes.txt").read_text() == "hello"
    assert {p.name for p in (killed / "damaged").iterdir()} == {
        "events-000098.sums", "events-000099.arrows", "events-000099.sums",
    }  # fmt: skip
    again = repair(killed)
    assert again.findings == repair(killed).findings


def test_damaged_batch_in_spool(killed: Path) -> None:
    file = min((killed / "spool").glob("events-*.arrows"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    report = check(killed)
    assert found(report, "damaged", "rows in it fail their checksum")
    repaired = repair(killed)
    (loss,) = losses(killed)
    assert loss["kind"] == "part_unreadable"
    assert found(repaired, "degraded", f"{loss['count']} rows are gone: ")
    assert {f.severity for f in repaired.findings} == {"info", "degraded"}
    with Trace.open(killed) as trace:
        assert all_events(trace).num_rows == 1000 - loss["count"] < 1000
    assert (killed / "damaged" / file.name).read_bytes() == data


def test_missing_spool_file(killed: Path) -> None:
    second = sorted((killed / "spool").glob("events-*.arrows"))[1]
    second.unlink()
    second.with_suffix(".sums").unlink()
    with Trace.open(killed) as trace:
        assert "spool: 1 files of events are missing" in trace.notes
    assert found(check(killed), "damaged", "1 files of events are missing")
    repair(killed)
    assert "events-000002.arrows" in losses(killed)[0]["detail"]
    assert repair(killed).findings == check(killed).findings


def test_end_record_without_part(sealed: Path) -> None:
    """The manifest says sealed, and a stream's only part is gone."""
    (sealed / "coverage/coverage-000001.parquet").unlink()
    report = check(sealed)
    assert found(report, "damaged", "coverage/coverage-000001.parquet: is missing (1 rows)")
    repair(sealed)
    assert losses(sealed)[-1]["detail"].startswith("coverage/coverage-000001.parquet is missing")


def test_litter_is_listed_and_only_our_own_is_removed(sealed: Path) -> None:
    (sealed / ".manifest.json.tmp").write_text("{")
    (sealed / "events/.events-000009.parquet.tmp").write_text("x")
    (sealed / "events/events-000077.parquet").write_text("x")
    (sealed / "thesis.tex").write_text("x")
    (sealed / "spool").mkdir()
    (sealed / "spool/events-000001.arrows").write_text("x")
    report = check(sealed)
    assert report.clean
    assert {f.file for f in report.findings} == {
        ".manifest.json.tmp", "events/.events-000009.parquet.tmp", "events/events-000077.parquet", "thesis.tex",
        "spool/events-000001.arrows",
    }  # fmt: skip
    assert {f.file for f in repair(sealed).findings} == {"events/events-000077.parquet", "thesis.tex"}
    assert not (sealed / "spool").exists()
    assert keys(all_events(Trace.open(sealed))) == expected_keys(1500)


def test_a_live_trace_is_left_alone(tmp_path: Path) -> None:
    w = record(tmp_path / "a.mscope", 300, finish=False)
    with pytest.raises(Refused, match="it is being recorded"):
        repair(tmp_path / "a.mscope")
    assert check(tmp_path / "a.mscope").state == "recording"
    w.finish("done")
    assert check(tmp_path / "a.mscope").clean


def test_damaged_side_table(sealed: Path) -> None:
    file = sealed / "tables/requests.parquet"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    for report in (check(sealed), repair(sealed)):
        assert found(report, "damaged", "tables/requests.parquet: tables/requests.parquet: it fails its checksum")
    with pytest.raises(Refused, match="it fails its checksum"):
        Trace.open(sealed).table("requests")


def test_wrong_order(sealed: Path) -> None:
    rows = first_part(sealed)
    replace_part(sealed, "events", rows.take(list(range(rows.num_rows))[::-1]))
    assert found(check(sealed), "damaged", "is not in order of rank, worker, seq")


def test_rows_twice_in_a_part_and_in_two_parts(sealed: Path) -> None:
    rows = first_part(sealed)
    order = [("rank", "ascending"), ("worker", "ascending"), ("seq", "ascending")]
    second = pq.read_table(sealed / "events/events-000002.parquet").replace_schema_metadata(None)
    replace_part(sealed, "events", pa.concat_tables([rows, rows.slice(0, 2), second.slice(3, 5)]).sort_by(order))
    rewrite(sealed, lambda m: m["streams"]["events"]["parts"][0].update(t_max=max(second["t"].to_pylist())))
    report = check(sealed)
    assert found(report, "damaged", "events/events-000001.parquet: 2 rows stand in it twice")
    assert found(
        report, "damaged", "events/events-000001.parquet: 5 rows of it are in events/events-000002.parquet too"
    )


def test_wrong_times_rows_and_columns(sealed: Path) -> None:
    rewrite(sealed, lambda m: m["streams"]["events"]["parts"][0].update(t_min=1001))
    assert found(check(sealed), "damaged", "holds other times")
    rewrite(sealed, lambda m: m["streams"]["events"]["parts"][1].update(rows=7))
    assert found(check(sealed), "damaged", "events-000002.parquet: has 400 rows, the manifest says 7")
    replace_part(sealed, "coverage", first_part(sealed, "intervals"))
    assert found(check(sealed), "damaged", "coverage-000001.parquet: cannot be decoded: has other columns")


def test_events_that_coverage_does_not_account_for(sealed: Path) -> None:
    replace_part(sealed, "coverage", pa.Table.from_batches([summaries(1501)["coverage"]]))
    report = check(sealed)
    assert found(report, "damaged", "program 1 wrote 1501 rows, 1500 are here and 0 are counted as lost")


SMALL = st.integers(0, 3)


@given(st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL, st.booleans()), max_size=6))
def test_identities_within_rows(rows: list[tuple[int, int, int, int, int, bool]]) -> None:
    """A row fails exactly where the arithmetic does, and only if it is closed."""
    zero = {c.name: 0 for c in INTERVALS} | {"seq_from": None, "seq_to": None, "worker": None}
    intervals = [zero | {"seqs": a, "dequeued": b, "lost": c, "closed": z} for a, b, c, _, _, z in rows]
    nothing = {c.name: 0 for c in COVERAGE} | {"worker": None}
    coverage = [
        nothing | {"eligible": a, "observed": b, "throttled": c, "lost": d, "faulted": e, "closed": z}
        for a, b, c, d, e, z in rows
    ]
    got = list(
        identities.unequal_rows(
            pa.Table.from_pylist(intervals, schema=INTERVALS.schema),
            pa.Table.from_pylist(coverage, schema=COVERAGE.schema),
        )
    )
    wrong_intervals = sum(z and a != b + c for a, b, c, _, _, z in rows)
    wrong_coverage = sum(z and a != b + c + d + e for a, b, c, d, e, z in rows)
    want = []
    if wrong_intervals:
        want.append(("intervals", f"seqs is not dequeued + lost in {wrong_intervals} rows"))
    if wrong_coverage:
        want.append(("coverage", f"eligible is not observed + throttled + lost + faulted in {wrong_coverage} rows"))
    assert got == want


def coverage_of(written: dict[int, int], closed: bool = True) -> pa.Table:
    zero = {c.name: 0 for c in COVERAGE} | {"worker": None, "closed": closed}
    return pa.Table.from_pylist(
        [zero | {"program": p, "written": n} for p, n in written.items()], schema=COVERAGE.schema
    )


def loss_of(**counts: int) -> pa.Table:
    zero: dict[str, Any] = dict.fromkeys(LOSS.names)
    rows = [zero | {"kind": k, "severity": "degraded", "count": n, "detail": ""} for k, n in counts.items()]
    return pa.Table.from_pylist(rows, schema=LOSS.schema)


def test_events_against_coverage() -> None:
    sums = identities.unequal_events
    assert sums({1: 10}, coverage_of({1: 12}), loss_of(disk_full=2, queue_full=99)) is None
    assert sums({1: 10}, coverage_of({1: 12}), loss_of(disk_full=1)) is not None
    assert sums({1: 12}, coverage_of({1: 10}), loss_of()) is not None
    assert sums({1: 10, 2: 4}, coverage_of({1: 12, 2: 4}), loss_of(overwritten=2)) is None
    assert sums({1: 10, 2: 4}, coverage_of({1: 13, 2: 4}), loss_of(overwritten=2)) is not None
    for unclaimed in (
        sums({1: 10}, coverage_of({}), loss_of()),
        sums({1: 10}, coverage_of({1: 99}, closed=False), loss_of()),
        sums({1: 10}, coverage_of({1: 99}), loss_of(engine_died=1)),
    ):
        assert unclaimed is not None
        assert unclaimed[0] == "info"


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=8), max_size=5))
def test_once_against_counting(parts: list[list[tuple[int, int]]]) -> None:
    once = sequence.Once()
    for number, part in enumerate(parts):
        who = np.array([w for w, _ in part], np.int64)
        seq = np.array([s for _, s in part], np.int64)
        key = sequence.Keys(who, seq)
        assert once.add(str(number), key, lambda key=key: key) == len(part) - len(set(part))  # type: ignore[misc]
    want = {
        (str(a), str(b), len(set(parts[a]) & set(parts[b]))) for b in range(len(parts)) for a in range(b)
    }  # fmt: skip
    nonempty = [i for i, p in enumerate(parts) if p]
    names = {str(n): str(i) for i, n in enumerate(nonempty)}
    assert {(a, b, n) for a, b, n in once.twice()} == {(a, b, n) for a, b, n in want if n and a in names and b in names}


def test_json_of_the_manifest_is_plain(sealed: Path) -> None:
    """The format is for other programs too: nothing but what any JSON reader understands."""
    m = json.loads((sealed / manifest.FILE).read_text())
    assert m["crc32"] == manifest.checksum(m)
    assert {f.stem.rpartition("-")[0] for f in sealed.glob("*/*.parquet") if "-" in f.stem} == {
        *m["streams"],
        "tasks",
        "tiles",
    }
    assert EVENTS.name in m["streams"]
