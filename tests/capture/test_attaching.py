"""Programs on a live engine: attached, replaced, detached, refused; what their maps held is what the rows say."""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.__main__ import run
from megascope.capture import attaching, control, wanted
from megascope.capture.engines.host.__main__ import layout_of
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.engines.host.spec import parse_spec
from megascope.capture.programs import histogram, image
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.program_words import Code, Requests
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.sink import SegmentSink
from megascope.capture.segment.writer import SegmentWriter
from megascope.capture.session import Session
from megascope.store.check import check
from megascope.store.errors import MegascopeError, Refused, Usage
from megascope.store.trace import Trace

SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128,workers=5"
HIST = "complete { @lat[task_class] = hist(since_ns); @n[worker] = count(); }"
EMITS = "complete /since_ns > 2us/ { @slow[task_class] = count(); emit(); }"


def load(text: str, name: str = "query", **constants: str) -> Program:
    return attaching.load(text, constants, query=True, name=name)


@dataclass
class Live:
    """An engine in a thread of this process."""

    path: Path
    engine: HostEngine
    writer: SegmentWriter
    stop: threading.Event = field(default_factory=threading.Event)
    failed: list[BaseException] = field(default_factory=list)


@contextmanager
def engine(folder: Path, spec: str, *, hold: bool = True) -> Iterator[Live]:
    """A host engine on a segment; it begins when its hooks are asked for (hold), and is stopped in the end."""
    made = HostEngine(parse_spec(f"{SMALL},{spec}"))
    made.load()
    path = folder / "live.mseg"
    about = {"kind": "host", "params": {}, "perturbation": {}}
    with SegmentWriter.create(path, layout_of(made.spec), side_tables=made.tables(), engine=about) as writer:
        live = Live(path, made, writer)

        def run() -> None:
            try:
                result = made.run(SegmentSink(writer), live.stop.is_set, hold=hold)
                writer.end(result.t, max(result.steps - 1, 0))
            except BaseException as e:
                live.failed.append(e)
                writer.end(made.t, 0, failed=True)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield live
        finally:
            live.stop.set()
            thread.join()
    assert not live.failed, live.failed


def rows_of(trace: Trace, stream: str, *columns: str) -> pa.Table:
    """Rows of a stream; of some columns, where the rows are millions."""
    tail = trace.tail(stream)
    names = list(columns or tail.column_names)
    parts = [pq.read_table(p.path, columns=names) for p in trace.verified(stream)]
    return pa.concat_tables([*parts, tail.select(names)]).replace_schema_metadata(None)


def record(live: Live, out: Path, programs: list[tuple[Program, Limits]], **options: bool) -> str:
    with SegmentReader.open(live.path, write=True) as segment:
        session = Session(segment, out, **options)
        try:
            for program, limits in programs:
                session.attach(program, limits)
            return session.run(stopped=lambda: False)
        finally:
            session.release()


def test_maps_hold_what_the_rows_say(tmp_path: Path) -> None:
    with engine(tmp_path, "steps=120,epoch_ms=1,monitors=2,telemetry=0") as live:
        assert record(live, tmp_path / "o.mscope", [(load(HIST), Limits()), (load(EMITS, "slow"), Limits())]) == "ended"
    report = check(tmp_path / "o.mscope")
    assert report.clean, report.findings
    with Trace.open(tmp_path / "o.mscope") as trace:
        events, lat, n = (rows_of(trace, s) for s in ("events", "maps.query_lat", "maps.query_n"))
        slow = rows_of(trace, "maps.slow_slow")
        programs = {p["name"]: p for p in trace.manifest["programs"]}
    done = events.filter(pa.array(events["hook"].to_numpy() == 4))
    since, classes = done["since_ns"].to_numpy(), done["task_class"].to_numpy()
    epoch = done["t"].to_numpy() // 1_000_000
    assert len(set(epoch.tolist())) > 3

    # Every epoch's histogram of every class, bucket by bucket.
    truth: dict[tuple[int, int], Counter[int]] = {}
    for e, c, ns in zip(epoch.tolist(), classes.tolist(), since.tolist(), strict=True):
        truth.setdefault((e, c), Counter())[histogram.lower(histogram.bucket(ns))] += 1
    got: dict[tuple[int, int], Counter[int]] = {}
    for row in lat.to_pylist():
        assert (row["epochs"], row["worker"], row["refused"]) == (1, None, 0)
        assert row["count"] == sum(row["counts"])
        assert row["lower"] == sorted(row["lower"])
        at = got.setdefault((row["epoch"], row["task_class"]), Counter())
        at.update(dict(zip(row["lower"], row["counts"], strict=True)))
    assert got == truth
    for e, c in truth:
        mine = since[(epoch == e) & (classes == c)]
        those = [r for r in lat.to_pylist() if (r["epoch"], r["task_class"]) == (e, c)]
        assert sum(r["sum"] for r in those) == mine.sum()
        assert (min(r["min"] for r in those), max(r["max"] for r in those)) == (mine.min(), mine.max())

    # A map keyed by worker is told worker by worker, with that worker's coverage.
    per_worker = Counter(done["worker"].to_pylist())
    for row in n.to_pylist():
        assert row["worker"] == row["key_worker"]
        assert row["eligible"] == row["observed"] == row["value"]
    assert Counter({w: sum(r["value"] for r in n.to_pylist() if r["worker"] == w) for w in per_worker}) == per_worker

    # What was emitted is marked, and counted alike.
    emitted = since[(done["by"].to_numpy() >> programs["slow"]["slot"] & 1) == 1]
    assert (since > 2_000).sum() == len(emitted) == sum(slow["value"].to_pylist())
    assert programs["slow"]["selection"] == "escalated(slow)"
    assert programs["query"]["hooks"] == ["complete"]


def test_without_a_recorder_there_are_only_emitted_rows(tmp_path: Path) -> None:
    with engine(tmp_path, "steps=60,epoch_ms=2") as live:
        record(live, tmp_path / "o.mscope", [(load(EMITS, "slow"), Limits(rows=7))], raw=False)
    assert check(tmp_path / "o.mscope").clean
    with Trace.open(tmp_path / "o.mscope") as trace:
        events, coverage = rows_of(trace, "events"), rows_of(trace, "coverage")
        assert [p["name"] for p in trace.manifest["programs"]] == ["slow"]
    assert set(events["by"].to_pylist()) == {2}
    assert (events["since_ns"].to_numpy() > 2_000).all()
    sums = {c: sum(coverage[c].to_pylist()) for c in ("emitted", "written", "emit_throttled", "ring_lost")}
    assert sums["emitted"] == sums["written"] + sums["emit_throttled"]
    assert sums["written"] == events.num_rows
    assert sums["emit_throttled"] > 0
    # At most seven rows of a worker in an epoch.
    place = Counter(zip(events["worker"].to_pylist(), (events["t"].to_numpy() // 2_000_000).tolist(), strict=True))
    assert max(place.values()) == 7


def test_a_budget_throttles_and_says_so(tmp_path: Path) -> None:
    with engine(tmp_path, "steps=60,epoch_ms=2") as live:
        record(live, tmp_path / "o.mscope", [(load(HIST), Limits(instructions=2_000))])
    assert check(tmp_path / "o.mscope").clean
    with Trace.open(tmp_path / "o.mscope") as trace:
        lat, coverage = rows_of(trace, "maps.query_lat").to_pylist(), rows_of(trace, "coverage").to_pylist()
    throttled = [r for r in coverage if r["program"] == 2]
    assert sum(r["throttled"] for r in throttled) > 0
    assert all(r["worker"] is not None for r in throttled if r["throttled"])
    # Each row says of its own worker and epoch what is missing.
    assert all(r["eligible"] == r["observed"] + r["throttled"] for r in lat)
    assert any(r["throttled"] and r["worker"] is not None for r in lat)
    assert sum(r["count"] for r in lat) == sum(r["observed"] for r in throttled)


def test_a_small_telemetry_budget_merges_epochs(tmp_path: Path) -> None:
    with engine(tmp_path, "steps=120,epoch_ms=0.5,telemetry=2000,map_kb=64") as live:
        record(live, tmp_path / "o.mscope", [(load(HIST), Limits())])
    with Trace.open(tmp_path / "o.mscope") as trace:
        lat, events = rows_of(trace, "maps.query_lat").to_pylist(), rows_of(trace, "events")
    assert max(r["epochs"] for r in lat) > 2
    assert sum(r["count"] for r in lat) == (events["hook"].to_numpy() == 4).sum()
    spans = sorted({(r["t_begin"], r["t_end"]) for r in lat})
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Live]:
    """An engine that runs on, with nothing recorded."""
    with engine(tmp_path, "steps=0,pace=1,record=0,arena_mb=64", hold=False) as live:
        yield live


def test_attach_replace_detach_and_what_is_said_of_them(idle: Live) -> None:
    one = control.attach(idle.path, HIST, name="lat", query=True)
    assert (one.program, one.slot) == (2, 1)
    (running,) = control.programs(idle.path).programs
    assert (running.name, running.line.hooks, running.line.program) == ("lat", 1 << 4, 2)
    two = control.attach(idle.path, "start { @n = count(); }", name="lat", query=True, replace=True)
    assert (two.program, two.slot) == (3, 1)
    assert [r.line.hooks for r in control.programs(idle.path).programs] == [1 << 3]
    control.detach(idle.path, "lat")
    found = control.programs(idle.path)
    assert (found.programs, found.arena_used) == ((), 0)


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        ("send { @n = count(); }", {}, Refused, "does not export the hook send"),
        ("complete { @n[task] = count() ", {}, MegascopeError, "column"),
        ("nothing.o", {"query": False}, Usage, "nothing.o"),
        (
            HIST,
            {"name": "recorder"},
            Usage,
            "cannot call a program recorder: the built-in recorder is called so; give it",
        ),
        (HIST, {"name": "Latency"}, Usage, "cannot call a program Latency: a standard monitor is called so; give it"),
        (HIST, {"replace": True}, Refused, "no program of that name is attached; none is attached"),
        ("complete { @h[task] = hist(since_ns); }", {}, Refused, r"its maps need [\d,]+ bytes, of 67,108,864 in the"),
    ],
)
def test_what_is_refused_reads_well(
    idle: Live, text: str, options: dict[str, Any], error: type[MegascopeError], says: str
) -> None:
    with pytest.raises(error, match=says) as e:
        control.attach(idle.path, text, **({"query": True} | options))
    assert "\n" not in str(e.value)
    assert not control.programs(idle.path).programs


def test_a_name_is_taken_once(idle: Live) -> None:
    control.attach(idle.path, "complete { @n = count(); }", name="lat", query=True)
    with pytest.raises(Refused, match="a program of that name is attached; detach it, or say --replace"):
        control.attach(idle.path, HIST, name="lat", query=True)
    with pytest.raises(Refused, match="no program of that name is attached; did you mean lat"):
        control.detach(idle.path, "lot")


def test_a_recording_is_told_of_names_that_are_taken_before_it_begins(idle: Live) -> None:
    """Triggers have no names of the user's: they take what is free."""
    control.attach(idle.path, "complete { @n = count(); }", name="trigger", query=True)
    with SegmentReader.open(idle.path) as segment:
        found = wanted.triggers(segment, [EMITS, EMITS], Limits())
        assert [program.name for program, _ in found] == ["trigger_2", "trigger_3"]
        control.attach(idle.path, "complete { @n = count(); }", name="query", query=True)
        with pytest.raises(Refused, match="cannot attach query: a program of that name is attached; give it another"):
            wanted.for_engine(segment, ["none", HIST], {}, Limits())


def test_slots_run_out_by_name(tmp_path: Path) -> None:
    with engine(tmp_path, "steps=0,pace=1,record=0,programs=2", hold=False) as live:
        for name in ("a", "b"):
            control.attach(live.path, "complete { @n = count(); }", name=name, query=True)
        with pytest.raises(Refused, match="all 2 slots are taken; detach another program"):
            control.attach(live.path, "complete { @n = count(); }", name="c", query=True)


def test_an_engine_without_room_for_programs_says_so(tmp_path: Path) -> None:
    from scripted import ScriptedEngine

    made = ScriptedEngine(tmp_path / "a.mseg", [0])
    with pytest.raises(Refused, match="runs no programs"):
        control.attach(made.writer.path, HIST, query=True)
    assert control.programs(made.writer.path).slots == 0


def test_an_engine_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megascope.capture.segment.mailbox.PATIENCE_S", 0.1)
    path = tmp_path / "a.mseg"
    made = HostEngine(parse_spec(SMALL))
    with SegmentWriter.create(path, layout_of(made.spec), side_tables=made.tables()) as writer:
        with SegmentReader.open(path, write=True) as segment:
            from megascope.capture.segment.mailbox import Mailbox

            with (
                Mailbox(segment, "cannot attach x", 0.1) as box,
                pytest.raises(MegascopeError, match="does not answer"),
            ):
                box.attach(1, b"x", Limits())
        writer.end(1, 0)
        with pytest.raises(MegascopeError, match="the engine has ended"):
            control.attach(path, HIST, query=True)
        with pytest.raises(
            MegascopeError, match="cannot detach lat: the engine has ended; megascope ls shows its state"
        ):
            control.detach(path, "lat")
        # What it has left is recorded all the same.
        with SegmentReader.open(path, write=True) as segment:
            assert wanted.for_engine(segment, [], {}, Limits())[0] == []
            assert wanted.for_engine(segment, [], {}, Limits())[-1] == ["no program is attached: the engine has ended"]


def test_an_engine_that_waits_for_a_recorder_says_so_and_goes_on_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.capture.segment.mailbox.PATIENCE_S", 0.1)
    monkeypatch.setattr("megascope.capture.control.directory", lambda: tmp_path)
    with engine(tmp_path, "steps=0,ring_mb=0.25", hold=False) as live:
        with SegmentReader.open(live.path, write=True) as segment:
            lease = Lease(segment)
            lease.record(segment.layout.exported)
            lease.release()
        until = time.monotonic() + 30
        while control.now(live.path).standing.text != "waits for a recorder":
            assert time.monotonic() < until
            time.sleep(0.002)
        (found,) = control.find()
        assert found.live
        assert found.standing is not None
        assert f"and nobody records it; megascope capture {live.path} lets it go on" in found.standing.told
        with pytest.raises(MegascopeError, match=r"rings have been full .* nobody records it; the request is withdra"):
            control.attach(live.path, HIST, name="late", query=True)
        with SegmentReader.open(live.path, write=True) as segment:
            session = Session(segment, tmp_path / "o.mscope")
            begun = time.monotonic()
            session.run(stopped=lambda: session.rings.taken > 50_000 or time.monotonic() - begun > 30)
            session.release()
            assert session.rings.taken > 50_000
        assert control.now(live.path).standing.text == "running"
        assert control.programs(live.path).programs == ()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["attach", "{}"], "cannot attach: no program is given, only the segment {}; say megascope attach {} PROGRAM"),
        (["attach", "gone.mseg"], "only the segment gone.mseg"),
        (["detach", "{}"], "no program is given, only the segment {}; say megascope detach {} NAME"),
        (["mark", "{}"], "cannot mark: {} is a segment, and no text is given"),
    ],
)
def test_the_only_word_may_be_a_segment_and_then_something_is_missing(idle: Live, words: list[str], says: str) -> None:
    with pytest.raises(Usage) as e:
        run([w.format(idle.path) for w in words])
    assert says.format(idle.path, idle.path) in str(e.value)


def test_constants_go_to_the_programs_that_have_them() -> None:
    one, other = (f"const {n} = 1us; complete /exec_ns > {n}/ {{ @n = count(); }}" for n in ("low", "high"))
    values = {"low": "2us", "high": "3us", "threshold_ns": "4us"}
    found = {p.name: p for p, _ in wanted.load(["slow_tasks", one, other], values, Limits())}
    assert found["query"] == load(one, low="2us")
    assert found["query_2"].insns == load(other, high="3us").insns
    assert any(m.initial == (4_000).to_bytes(8, "little") for m in found["slow_tasks"].maps)
    with pytest.raises(Usage, match="no program has a constant hihg; did you mean high"):
        wanted.load([one, other], {"hihg": "1"}, Limits())


def test_who_left_before_the_recording_is_in_it_only_with_what_it_left(idle: Live, tmp_path: Path) -> None:
    """The first recording finds the interval of the one that left in the rings, the second finds nothing of it."""
    control.attach(idle.path, "complete { @n = count(); }", name="gone", query=True)
    control.detach(idle.path, "gone")
    listed = []
    for name in ("first", "second"):
        with SegmentReader.open(idle.path, write=True) as segment:
            session = Session(segment, tmp_path / f"{name}.mscope")
            try:
                session.attach(load("complete { @n = count(); }", f"of_{name}"))
                session.run(stopped=lambda: False, seconds=0.05)
            finally:
                session.release()
        with Trace.open(tmp_path / f"{name}.mscope") as trace:
            listed.append([p["name"] for p in trace.manifest["programs"]])
            programs = {p["program"] for p in trace.manifest["programs"]}
            assert set(rows_of(trace, "coverage", "program")["program"].to_pylist()) <= programs
    assert listed == [["recorder", "gone", "of_first"], ["recorder", "of_second"]]


CHANGES = 120


def _changes(path: Path, count: int, look: Callable[[], object] = lambda: None) -> None:
    """Attach, replace and detach in turn, `count` times in all."""
    packed = [load(f"complete {{ @n{i}[task_class] = count(); emit(); }}", "p") for i in range(2)]
    with SegmentReader.open(path, write=True) as segment:
        for i in range(count // 3):
            attaching.attach(segment, packed[0])
            attaching.attach(segment, packed[1], replace=True)
            attaching.detach(segment, "p")
            if i % 50 == 0:
                look()


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _no_event_under_two(tmp_path: Path, count: int, pace: str) -> list[int]:
    """Change programs while the engine is recorded, and look at every event. Bytes in memory, again and again."""
    resident: list[int] = []
    with (
        engine(tmp_path, f"steps=0,pace={pace},epoch_ms=5") as live,
        SegmentReader.open(live.path, write=True) as segment,
    ):
        session = Session(segment, tmp_path / "o.mscope")
        over = threading.Event()

        def change() -> None:
            try:
                time.sleep(0.2)
                _changes(live.path, count, lambda: resident.append(_resident()))
            finally:
                over.set()

        changer = threading.Thread(target=change)
        changer.start()
        assert session.run(stopped=over.is_set) == "stopped"
        changer.join()
        session.release()
        found = control.programs(live.path)
        assert (found.programs, found.arena_used) == ((), 0)
    # Nothing of a program stays with the engine once what it has to tell has been taken.
    programs = live.engine._programs
    assert (list(programs), programs._leaving, programs._memory) == ([], [], {})
    assert [f.program for f in live.engine._account.flows] in ([], [1])
    report = check(tmp_path / "o.mscope")
    assert report.clean, report.findings
    with Trace.open(tmp_path / "o.mscope") as trace:
        programs = [p for p in trace.manifest["programs"] if p["program"] > 1]
        events, coverage = rows_of(trace, "events", "t", "by", "hook"), rows_of(trace, "coverage").to_pylist()
    assert len(programs) == 2 * (count // 3)
    assert [p["program"] for p in programs] == list(range(2, 2 + len(programs)))
    order = np.argsort(events["t"].to_numpy(), kind="stable")
    t, by, hook = (events[c].to_numpy()[order] for c in ("t", "by", "hook"))
    # Events of one moment may stand on both sides of a change, those between two changes do not.
    inside = np.zeros(len(t), np.bool_)
    edge = np.isin(t, [p[k] for p in programs for k in ("attached", "detached")])
    for p in programs:
        between = slice(np.searchsorted(t, p["attached"], "right"), np.searchsorted(t, p["detached"], "left"))
        mine = (hook[between] == 4) & ~edge[between]
        assert (by[between][mine] >> p["slot"] & 1).all()
        inside[between] |= mine
    assert inside.sum() > count
    assert (by[~inside & ~edge] == 1).all()
    others = by >> 1
    assert (others & (others - 1) == 0)[others > 0].all(), "an event under two generations"
    for slot in {p["slot"] for p in programs}:
        ids = {p["program"] for p in programs if p["slot"] == slot}
        of_slot = [r for r in coverage if r["program"] in ids]
        assert (by >> slot & 1).sum() == sum(r["written"] for r in of_slot) == sum(r["eligible"] for r in of_slot)
    return resident


def test_attached_and_detached_hundreds_of_times(tmp_path: Path) -> None:
    _no_event_under_two(tmp_path, CHANGES, "0.2")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_attached_and_detached_ten_thousand_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The engine, its recorder and whoever attaches share one interpreter here, and perhaps a busy machine.
    monkeypatch.setattr("megascope.capture.segment.mailbox.PATIENCE_S", 120.0)
    resident = _no_event_under_two(tmp_path, 10_000, "0.0003")
    # The recording tells of every program that there was; the engine keeps none of them.
    assert resident[-1] - resident[len(resident) // 10] < 9_000 * 40_000


def test_a_request_that_somebody_scribbled_is_answered_and_the_next_one_works(idle: Live) -> None:
    rng = np.random.default_rng(5)
    whole = image.pack(load(HIST))
    with SegmentReader.open(idle.path, write=True) as segment:
        lay = segment.layout
        for i in range(150):
            commit = segment.read(lay.requests_offset + Requests.COMMIT, 1)[0]
            noise = rng.integers(0, 256, 60, dtype=np.uint8).tobytes()
            if i % 3:
                # A request that is whole, of an image that is not.
                import struct
                import zlib

                from megascope.capture.segment.program_words import REQUEST

                data = bytearray(whole)
                for _ in range(1 + i % 5):
                    data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
                if i % 2:
                    body = bytes(data[20:])
                    data[16:20] = struct.pack("<I", zlib.crc32(body))
                segment.poke(lay.images_offset, bytes(data))
                from megascope.capture.segment import slots

                number = slots.answer(segment).number + 1
                head = REQUEST.pack(number, 1, 1 + i % 31, 0, len(data), zlib.crc32(bytes(data)), 0, 0, 0, 0)[:-4]
                noise = head + struct.pack("<I", zlib.crc32(head))
            segment.poke(lay.requests_offset, noise)
            segment.poke(lay.requests_offset + Requests.COMMIT, bytes([commit + 1 & 0xFF]))
            until = time.monotonic() + 90
            while True:
                said = attaching.slots.answer(segment)
                if said.number & 0xFF == commit + 1 & 0xFF:
                    break
                assert time.monotonic() < until
                time.sleep(0.001)
            assert not idle.failed
            if said.code == Code.DONE:
                # The damage did not matter: a comment in the source, say.
                (there,) = attaching.running(segment)
                attaching.detach(segment, there.name)
    assert control.attach(idle.path, HIST, name="after", query=True).name == "after"
