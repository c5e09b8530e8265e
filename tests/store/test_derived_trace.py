"""Tasks, waits and tiles of a trace: the same from a recording that goes on, a sealed, a killed and a repaired one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle_pairing as oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_traces import GIVEN, all_of, expected_starts, record, ring_rows, started
from test_pairing_host_engine import SHAPES, Run
from test_tiles import spread

from megascope.store import derived, derived_rest, manifest, parquet
from megascope.store.check import Report, check, repair
from megascope.store.derive import Derivation
from megascope.store.errors import MegascopeError
from megascope.store.pairing import Context, Pairer
from megascope.store.tables import HOOK_BY_NAME, HOOKS, INTERVALS, RECORDER, RING_ROW, WORKERS
from megascope.store.tiles import LEVELS, TileBuilder
from megascope.store.trace import Trace, TraceWriter

pytestmark = pytest.mark.usefixtures("small")

SLOWER = 300
"""Host engine runs take 0.4 ms of virtual time; so much longer they fill more than one slice of the coarsest level."""
STEP = 300


class HostTrace(Run):
    """A run of the host engine as it is recorded: ring rows, lost events and side tables."""

    def __init__(self) -> None:
        super().__init__(SHAPES["two ranks"] + ",lose=0.2")
        events = self.events.copy()
        timed = np.isin(events["hook"], [h.id for h in HOOKS if h.since])
        events["t"] *= SLOWER
        events["aux"] = np.where(timed, events["aux"] * SLOWER, events["aux"])
        self.events = events
        workers = [
            {"worker": int(w), "monitor": 0, "sm": -1, "role": "", "rank": int(w) // (len(self.workers) // 2)}
            for w in self.workers
        ]
        self.tables = {"workers": pa.Table.from_pylist(workers, schema=WORKERS.schema)}
        names = [h.name for h in HOOKS if h.id in self.hooks]
        self.given = GIVEN | {"engine": GIVEN["engine"] | {"exported_hooks": names}}

    def ring(self, begin: int, end: int) -> pa.RecordBatch:
        rows = self.events[begin:end]
        columns = [np.ascontiguousarray(rows[n]) for n in RING_ROW.names[:-1]]
        return pa.record_batch([*columns, np.full(len(rows), RECORDER, np.uint32)], schema=RING_ROW.schema)

    def lost(self, begin: int, end: int) -> pa.RecordBatch:
        """Sequence numbers that are not among the rows, by worker."""
        rows = self.events[begin:end]
        out = []
        for worker in np.unique(rows["worker"]):
            mine = rows[rows["worker"] == worker]
            low, high, t = int(mine["seq"].min()), int(mine["seq"].max()), mine["t"]
            row = {"rank": int(mine["rank"][0]), "worker": int(worker), "workers": 1, "epoch": 0, "epochs": 1}
            row |= {"t_begin": int(t.min()), "t_end": int(t.max()) + 1, "seq_from": low, "seq_to": high + 1}
            row |= {"seqs": high + 1 - low, "dequeued": len(mine), "lost": high + 1 - low - len(mine), "unclaimed": 0}
            out.append(row | {"closed": True})
        return pa.RecordBatch.from_pylist(out, schema=INTERVALS.schema)

    def record(self, path: Path, at: Callable[[int], None] = lambda _: None, rows: int = 1 << 60) -> TraceWriter:
        """Record the first rows; `at` is called after every step with the number of rows so far."""
        w = TraceWriter.create(path, self.given, self.tables)
        rows = min(rows, len(self.events))
        for begin in range(0, rows, STEP):
            end = min(begin + STEP, rows)
            w.append("events", self.ring(begin, end))
            w.append("intervals", self.lost(begin, end))
            w.flush()
            at(end)
        return w

    def truth(self, rows: int) -> tuple[list[str], list[str]]:
        """Tasks and waits of the first rows, by the slow oracle."""
        events = self.part(0, rows).to_pylist()
        return canonical(oracle.tasks(events, self.hooks)), canonical(oracle.waits(events, self.hooks))

    def tiles(self, rows: int) -> Counter[tuple[Any, ...]]:
        """Tiles of the first rows, of all tasks and waits at once."""
        pairer, builder = Pairer(Context(self.workers, self.hooks)), TileBuilder()
        first, last = pairer.feed(self.part(0, rows)), pairer.finish()
        out = [builder.feed(d.tasks, d.waits, d.frontier) for d in (first, last)]
        return spread([*out, builder.finish()])


def canonical(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(r.items())) for r in rows)


@pytest.fixture(scope="module")
def run() -> HostTrace:
    return HostTrace()


@pytest.fixture
def sealed(run: HostTrace, memory_path: Path) -> Path:
    run.record(memory_path / "a.mscope").finish("done")
    return memory_path / "a.mscope"


def assert_same(run: HostTrace, trace: Trace, rows: int) -> None:
    """The trace of the first rows tells all that they come to, once."""
    tasks, waits = run.truth(rows)
    assert canonical(all_of(trace, "tasks").to_pylist()) == tasks
    assert canonical(all_of(trace, "waits").to_pylist()) == waits
    tiles = all_of(trace, "tiles")
    assert spread([tiles]) == run.tiles(rows)
    intervals = [pq.read_table(p.path).to_pylist() for p in trace.verified("intervals")]
    lost = sum(r["lost"] for rows in (*intervals, trace.tail("intervals").to_pylist()) for r in rows)
    for level in LEVELS:
        assert sum(r["lost"] for r in tiles.to_pylist() if r["level"] == level) == lost > 0


def test_a_recording_that_goes_on_and_its_end(run: HostTrace, memory_path: Path) -> None:
    path = memory_path / "a.mscope"
    looks = 0

    def look(rows: int) -> None:
        nonlocal looks
        if rows % 900 == 0:
            with Trace.open(path) as trace:
                assert trace.state == "recording"
                assert_same(run, trace, rows)
                looks += len(trace.parts("tasks")) > 0
                assert len(trace.notes) == 1

    w = run.record(path, look)
    wait_for(w)
    with Trace.open(path) as trace:
        assert trace.manifest["derived"]["upto"] > 5
        assert trace.manifest["derived"]["state"]
        assert_same(run, trace, len(run.events))
    w.finish("done")
    with Trace.open(path) as trace:
        assert (trace.state, trace.is_derived, trace.notes) == ("sealed", True, [])
        assert trace.tail("tasks").num_rows == trace.tail("waits").num_rows == trace.tail("tiles").num_rows == 0
        assert len(trace.parts("tasks")) > 5
        assert_same(run, trace, len(run.events))
    assert looks > 0
    report = check(path)
    assert not [f for f in report.findings if f.severity != "info" and "coverage" not in f.what], report.findings
    assert report.rows["tasks"] == len(run.truth(len(run.events))[0])


def wait_for(w: TraceWriter) -> None:
    """Until everything that can be sealed in the background is, and is derived from."""
    while w._sealer._ready() or derived.not_taken(w._manifest.snapshot(), "events") or w._deriver.owed:
        time.sleep(0.001)


def killed(run: HostTrace, path: Path, rows: int, *, settled: bool = False) -> None:
    """A recording whose process ends at once, or when all that can be derived by then is."""
    pid = os.fork()
    if pid == 0:
        try:
            w = run.record(path, rows=rows)
            if settled:
                wait_for(w)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("after", [300, 2100, 4500])
def test_a_killed_recording_and_its_repair(run: HostTrace, memory_path: Path, after: int, settled: bool) -> None:
    path = memory_path / "a.mscope"
    killed(run, path, after, settled=settled)
    with Trace.open(path) as trace:
        assert (trace.state, trace.is_derived) == ("unsealed", False)
        assert_same(run, trace, after)
        assert any("were put together while reading" in n for n in trace.notes)
    assert not [f for f in repair(path).findings if f.severity == "damaged"]
    assert not (path / "spool").exists()
    with Trace.open(path) as trace:
        assert (trace.state, trace.is_derived) == ("sealed", True)
        assert_same(run, trace, after)
        assert trace.notes == []


def files(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for n in derived.NAMES for f in (path / n).glob("*")}


def found(report: Report, text: str) -> list[str]:
    return [f.severity for f in report.findings if text in f"{f.file}: {f.what}"]


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "folder gone"])
@pytest.mark.parametrize("name", derived.NAMES)
def test_a_damaged_part_is_found_and_built_again(sealed: Path, name: str, damage: str) -> None:
    before = files(sealed)
    content = manifest.read(sealed)["derived"]
    part = sealed / name / "tiles-lost-000001.parquet" if name == "tiles" else sorted((sealed / name).glob("*"))[1]
    data = bytearray(part.read_bytes())
    if damage == "missing":
        part.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    elif damage == "cut":
        part.write_bytes(data[:-7])
    else:
        shutil.rmtree(part.parent)
    report = check(sealed)
    assert found(report, f"{name}/{part.name}: ") == ["damaged"]
    assert not report.clean
    with Trace.open(sealed) as trace:
        rows = all_of(trace, name).num_rows
        assert any(f"{name}/{part.name} was left out" in n for n in trace.notes)
    assert found(repair(sealed), f"{name}/{part.name}") == []
    assert files(sealed) == before
    assert manifest.read(sealed)["derived"] == content
    with Trace.open(sealed) as trace:
        assert all_of(trace, name).num_rows > rows
        assert trace.notes == []


def forget(path: Path) -> None:
    """Make it a trace as it was before there were derived tables."""
    content = manifest.read(path)
    del content["derived"]
    manifest.write(path, content)
    for name in derived.NAMES:
        shutil.rmtree(path / name)


def test_a_trace_without_derived_parts(run: HostTrace, sealed: Path) -> None:
    before = files(sealed)
    forget(sealed)
    assert found(check(sealed), "tasks, waits and tiles are derived from 0 of") == ["info"]
    with Trace.open(sealed) as trace:
        assert (trace.state, trace.is_derived, trace.notes) == ("sealed", False, [])
        assert trace.parts("tasks") == trace.verified("tiles") == []
        assert_same(run, trace, len(run.events))
        assert any("megascope check --repair seals them" in n for n in trace.notes)
    repair(sealed)
    assert files(sealed) == before


def test_too_much_to_derive_is_left_out_and_said(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(sealed)
    monkeypatch.setattr(derived_rest, "EVENTS_MOST", 1000)
    with Trace.open(sealed) as trace:
        assert all_of(trace, "tasks").num_rows == all_of(trace, "waits").num_rows == 0
        assert [n for n in trace.notes if "what comes last was left out" in n and "--repair" in n]


@pytest.mark.parametrize("damage", ["missing", "flipped", "of another", "not a file"])
def test_without_what_was_carried_over(run: HostTrace, memory_path: Path, damage: str) -> None:
    """The reader begins with the first event, and gives no row that a derived part has."""
    path = memory_path / "a.mscope"
    killed(run, path, 4500, settled=True)
    (state,) = (path / "spool").glob("open-*.state")
    data = bytearray(state.read_bytes())
    state.unlink()
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "of another":
        data = bytearray(b"MSCOPEN1" + data[8:-1])
        state.write_bytes(data)
        content = manifest.read(path)
        size, crc = parquet.file_crc(state)
        content["derived"]["state"] |= {"bytes": size, "crc32": crc}
        manifest.write(path, content)
    elif damage == "not a file":
        state.mkdir()
    with Trace.open(path) as trace:
        assert len(trace.parts("tasks")) > 0
        assert_same(run, trace, 4500)
        assert any("cannot go on with pairing" in n for n in trace.notes) == (damage == "of another")


def test_a_full_disk_is_waited_for(run: HostTrace, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that found no room is taken again, and nothing is derived twice."""
    path = memory_path / "a.mscope"
    real, tries = parquet.write_derived, Counter[str]()

    def full_at_first(folder: Path, name: str, file: str, rows: pa.Table) -> dict[str, Any]:
        tries[file] += 1
        if name != "tasks" and tries[file] == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(folder, name, file, rows)

    w = TraceWriter.create(path, run.given, run.tables)
    w._deriver.stop()
    monkeypatch.setattr(parquet, "write_derived", full_at_first)
    for begin in range(0, len(run.events), 300):
        w.append("events", run.ring(begin, begin + 300))
    w.append("intervals", run.lost(0, len(run.events)))
    w.flush()
    w.finish("done")
    with Trace.open(path) as trace:
        assert (trace.state, trace.is_derived) == ("sealed", False)
        assert_same(run, trace, len(run.events))
    assert found(check(path), "tasks, waits and tiles are derived from") == ["info"]
    content = manifest.read(path)
    derivation = Derivation(path, manifest.Manifest(path, content | {"derived": derived.fresh()}), keep_state=False)
    tries.clear()

    def until_done(act: Callable[..., None], *args: Any) -> int:
        failures = 0
        while True:
            try:
                act(*args)
                return failures
            except OSError:
                failures += 1

    failures = [
        until_done(derivation.step, stream, entry)
        for stream in derived.SOURCES
        for entry in content["streams"][stream]["parts"]
    ]
    assert sum(failures) > 2
    assert until_done(derivation.finish) == 2
    with Trace.open(path) as trace:
        assert trace.is_derived
        assert_same(run, trace, len(run.events))


def test_a_failing_derivation_costs_no_event(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = memory_path / "a.mscope"

    def no_memory(*_: Any) -> None:
        raise MemoryError

    w = record(path, 1500, finish=False)
    monkeypatch.setattr(Pairer, "feed", no_memory)
    while not w._deriver._failed:
        w.append("events", ring_rows(1500 + w.rows["events"] - 1500, 100))
        w.flush()
    rows = w.rows["events"]
    with pytest.raises(MegascopeError, match=r"cannot finish .*: Cannot allocate memory; .*--repair"):
        w.finish("done")
    monkeypatch.undo()
    with Trace.open(path) as trace:
        assert (trace.state, trace.is_derived, trace.manifest["end"]) == ("sealed", False, {"reason": "done"})
        assert started(trace) == expected_starts(rows)
    repair(path)
    with Trace.open(path) as trace:
        assert trace.is_derived
        assert started(trace) == expected_starts(rows)


def test_derived_parts_outlive_their_events(memory_path: Path) -> None:
    """Repair drops a part of events that cannot be read, and keeps the tasks that were found in it."""
    path = memory_path / "a.mscope"
    record(path, 1500)
    (path / "events/events-000001.parquet").unlink()
    repair(path)
    with Trace.open(path) as trace:
        assert len(trace.parts("events")) > 0
        assert started(trace) == expected_starts(1500)
    min((path / "tasks").glob("*")).unlink()
    repair(path)
    with Trace.open(path) as trace:
        left = sum(p.rows for p in trace.parts("events"))
        assert started(trace) == expected_starts(1500)[-left:]


def test_what_is_odd_is_counted_and_said(memory_path: Path) -> None:
    path = memory_path / "a.mscope"
    given = GIVEN | {"engine": GIVEN["engine"] | {"exported_hooks": ["ready", "start", "complete", "wait", "resume"]}}
    w = TraceWriter.create(path, given, {})
    w.append("events", ring_rows(0, 10))
    w.append("events", ring_rows(30, 2, workers=2, hook="wait"))
    w.append("events", ring_rows(40, 2, workers=1, hook="complete"))
    w.append("events", ring_rows(40, 1, workers=1, hook="complete"))
    w.finish("done")
    counts = manifest.read(path)["derived"]["counts"]
    assert set(counts) == set(derived.COUNTS)
    told = {k: n for k, n in counts.items() if n}
    assert told.pop("missing_resume", 0) + told.pop("open_waits", 0) == 2
    assert told == {
        "tasks": 12, "waits": 2, "missing_ready": 12, "missing_start": 2, "missing_complete": 10, "duplicates": 1,
    }  # fmt: skip
    said = [f"{f.severity} {f.file}: {f.what}" for f in check(path).remarks]
    assert "info tasks: 12 without their ready event, which was not recorded" in said
    assert "info tasks: 1 events stood there twice and were taken once" in said


def test_parts_are_sorted_and_their_times_exact(sealed: Path) -> None:
    with Trace.open(sealed) as trace:
        for name, first, times in (
            ("tasks", "start", ("ready", "assign", "start", "complete")),
            ("waits", "t_begin", ("t_begin", "t_end")),
        ):
            for part in trace.parts(name):
                rows = pq.read_table(part.path).replace_schema_metadata(None)
                assert rows.schema == parquet.BY_NAME[name].schema
                known = [t for t in rows[first].to_pylist() if t is not None]
                assert rows[first].to_pylist() == sorted(known) + [None] * (rows.num_rows - len(known))
                every = [t for c in times for t in rows[c].to_pylist() if t is not None]
                assert (part.t_min, part.t_max) == (min(every), max(every))
        for part in trace.parts("tiles"):
            tiles = pq.read_table(part.path).to_pylist()
            assert part.t_min == min(r["tile"] << r["level"] for r in tiles)
            assert part.t_max == max(r["tile"] + r["span"] << r["level"] for r in tiles)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "says derived.upto is -1": lambda d: d.update(upto=-1),
    "has no bool at derived.finished": lambda d: d.update(finished=1),
    "has no int at derived.counts.tasks": lambda d: d["counts"].update(tasks="12"),
    "has no dict at streams.waits": lambda d: d.pop("waits"),
    "names a file '../x.parquet' for tasks": lambda d: d["tasks"]["parts"][0].update(file="../x.parquet"),
    "lists a part of tasks twice": lambda d: d["tasks"]["parts"].append(d["tasks"]["parts"][0]),
    "has no time range for tasks-000002.parquet": lambda d: d["tasks"]["parts"][0].update(t_min=None),
    "names a file '../../etc/passwd' for what": lambda d: d.update(state={"file": "../../etc/passwd"}),
    "says derived.state.bytes is -1": lambda d: d.update(state={"file": "open-000001.state", "bytes": -1}),
}


@pytest.mark.parametrize("why", EDITS)
def test_manifests_are_refused(memory_path: Path, why: str) -> None:
    path = memory_path / "a.mscope"
    record(path, 100)
    content = json.loads((path / manifest.FILE).read_text())
    EDITS[why](content["derived"])
    content["crc32"] = manifest.checksum(content)
    with pytest.raises(MegascopeError) as caught:
        manifest.parse(json.dumps(content).encode(), "it")
    assert why in str(caught.value)


def test_no_hook_is_forgotten() -> None:
    assert {f"missing_{n}" for n in HOOK_BY_NAME} & set(derived.COUNTS) == {
        f"missing_{n}" for n in ("ready", "assign", "start", "complete", "wait", "resume")
    }
