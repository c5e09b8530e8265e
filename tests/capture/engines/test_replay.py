"""Replay against live: the same programs, attached to a run and over its recording, must tell the same to the bit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from host_runs import SHAPES, SMALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_runs import Programs, coverage, emitted, ids, maps, record, replay, rows

from megascope.__main__ import run as megascope
from megascope.capture.engines.recorded.output import Output
from megascope.capture.engines.recorded.recording import Recording
from megascope.capture.engines.recorded.replay import Interrupted, Replay
from megascope.capture.programs import histogram, standard
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.language import QueryRefused
from megascope.capture.programs.language import compile as compile_query
from megascope.capture.programs.loader import load
from megascope.capture.programs.program import Program
from megascope.store import seal, spool
from megascope.store.check import check
from megascope.store.errors import Refused
from megascope.store.tables import HOOK_BY_NAME
from megascope.store.trace import Trace, TraceWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "programs"))
from query_runs import arrow
from query_session import sample_tables
from query_texts import queries as random_queries
from test_query_docs import EXAMPLES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "face"))
from page import asked_of

ALL_HOOKS = sum(1 << h.id for h in HOOK_BY_NAME.values())
OBJECTS = Path(__file__).resolve().parents[1] / "programs" / "objects"
SLOW = {"threshold_ns": "2us"}
DOCUMENTED_RUN = "steps=40,ranks=2,workers=8,layers=2,experts=8,top_k=2,slots=6,epoch_ms=10"
"""As sample_traces/host.mscope."""
SHORT = ",epoch_ms=0.5,jitter=0.3"


def monitors(*names: str) -> Programs:
    return [(standard.load(n, SLOW if n == "slow_tasks" else {}), standard.BY_NAME[n].limits) for n in names]


def objects(*names: str, limits: Limits | None = None) -> Programs:
    """By names of their own: a standard monitor's is its alone."""
    return [(load(OBJECTS / f"{name}.bpf.o", name=f"the_{name}"), limits or Limits()) for name in names]


def queries(*texts: str) -> Programs:
    return [(compile_query(text, name=f"q{i}").program, Limits()) for i, text in enumerate(texts)]


EVERY = tuple(m.name for m in standard.MONITORS)
ONE_RANK = tuple(n for n in EVERY if n != "comm")
QUERIES = (
    "complete { @n[class, worker] = count(); }",
    "complete /exec_ns > 1us/ { @h[class] = hist(exec_ns); emit() limit(20000/s); }",
    "resume { @s[dep_class] = stats(wait_ns); @m[worker] = max(wait_ns); }",
    "start, complete { @t[task] = t; if (worker == 1) { delete(@t[task]); } }",
)
RUNS: dict[str, tuple[str, Programs]] = {
    "every monitor, two ranks": (SHAPES["dynamic-2-ranks"] + SHORT, monitors(*EVERY)),
    "every monitor, short queues": (SHAPES["short-queues"] + SHORT, monitors(*ONE_RANK)),
    "static": (SHAPES["static"] + SHORT, monitors("latency", "waits", "requests", "slow_tasks")),
    "tiny epochs": (SHAPES["dynamic"] + ",epoch_ms=0.02", monitors("latency", "slow_tasks")),
    "one epoch": (SHAPES["dynamic"], monitors("latency", "queues")),
    "queues that lose": (SHAPES["dynamic-2-ranks"] + SHORT + ",lose=0.05", monitors(*EVERY)),
    "objects, state and epochs": (
        SHAPES["dynamic-2-ranks"] + SHORT,
        objects("class_latency", "pairing", "requests", "trend", "wait_stats", "extremes", "loops"),
    ),
    "spent budgets": (
        SHAPES["dynamic"] + SHORT,
        [*objects("class_latency", "pairing", limits=Limits(9_000, 2)), *monitors("slow_tasks")],
    ),
    "queries": (SHAPES["dynamic"] + SHORT, queries(*QUERIES)),
}


@pytest.mark.parametrize("name", RUNS)
def test_replay_tells_what_live_told(name: str, tmp_path: Path) -> None:
    spec, programs = RUNS[name]
    live = record(tmp_path, spec, programs)
    again = replay(live, tmp_path / "replay.mscope", programs)
    told = maps(live)
    assert told
    assert any(told.values())
    assert maps(again) == told
    assert coverage(again, ids(programs)) == coverage(live, ids(programs))
    assert emitted(again) == emitted(live)
    if any(p.name in ("slow_tasks", "class_latency", "q1") for p, _ in programs):
        assert emitted(live)
    assert not check(again).findings


def _documented() -> Programs:
    """Every example of docs/query.md and docs/ask.md, with the names of the run of which the pages tell."""
    programs: list[tuple[Program, Limits]] = []
    for text in dict.fromkeys([*(query for query, _ in EXAMPLES), *asked_of("ranks")]):
        query = compile_query(text, sample_tables(), name=f"q{len(programs)}")
        programs.append((dataclasses.replace(query.program, feedback=query.feedback), Limits()))
    return programs


def test_every_example_tells_over_a_recording_what_it_told_live(tmp_path: Path) -> None:
    documented = _documented()
    assert len(documented) > 25
    # What depends on engine-wide values is late live, and not over a recording: only their maps are the same.
    fed = [p for p in documented if p[0].feedback]
    rest = [p for p in documented if not p[0].feedback]
    assert len(fed) >= 2
    for number, programs in enumerate([rest[:20], rest[20:], fed]):
        folder = tmp_path / str(number)
        folder.mkdir()
        live = record(folder, DOCUMENTED_RUN, programs)
        again = replay(live, folder / "replay.mscope", programs)
        told = maps(live)
        assert maps(again) == told
        assert any(told.values())
        if programs is not fed:
            assert coverage(again, ids(programs)) == coverage(live, ids(programs))
            assert emitted(again) == emitted(live)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(random_queries(), min_size=8, max_size=16))
def test_random_queries_tell_over_a_recording_what_they_told_live(texts: list[str]) -> None:
    programs: list[tuple[Program, Limits]] = []
    for i, text in enumerate(texts):
        # The generator does not count bytes: what it makes may be too much for a frame.
        with suppress(QueryRefused):
            program = compile_query(text, arrow(), name=f"q{i}").program
            if not program.mask & ~ALL_HOOKS:
                programs.append((program, Limits()))
    with TemporaryDirectory() as folder:
        live = record(Path(folder), SHAPES["dynamic-2-ranks"] + ",steps=20,epoch_ms=0.2,arena_mb=16384", programs)
        again = replay(live, Path(folder) / "replay.mscope", programs)
        assert maps(again) == maps(live)
        assert coverage(again, ids(programs)) == coverage(live, ids(programs))
        assert emitted(again) == emitted(live)


def test_a_replay_says_of_which_trace_it_is(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, [])
    again = replay(live, tmp_path / "replay.mscope", monitors("latency"))
    with Trace.open(live) as one, Trace.open(again) as other:
        text = json.dumps(one.manifest, sort_keys=True, separators=(",", ":")).encode()
        of = other.manifest["engine"]["replay_of"]
        assert of["manifest_sha256"] == hashlib.sha256(text).hexdigest()
        assert (of["trace"], of["population"], of["selection"]) == (one.manifest["id"], "recorder", "all")
        assert [p["name"] for p in other.manifest["programs"]] == ["latency"]
        assert other.manifest["programs"][0]["selection"] == "escalated(latency)"
        for table in ("task_classes", "workers", "requests", "step_requests"):
            assert other.table(table).equals(one.table(table)), table
    assert sum(rows(again, "intervals")["seqs"].to_pylist()) == sum(rows(live, "intervals")["seqs"].to_pylist())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts, each with many workers and few rows, however late the recorder comes by."""
    monkeypatch.setattr("megascope.store.gather.BATCH_ROWS", 500)
    monkeypatch.setattr(spool, "ROTATE_ROWS", 1_000)
    monkeypatch.setattr(seal, "PART_ROWS", 1_000)
    monkeypatch.setattr(seal, "_PART_MOST", 1_250)


@pytest.mark.usefixtures("small_parts")
def test_parts_that_overlap_epochs_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [*monitors("latency", "slow_tasks"), *objects("pairing", "trend")]
    live = record(tmp_path, SMALL + ",steps=120,epoch_ms=0.3,pace=0.003", programs)
    with Trace.open(live) as trace:
        assert len(trace.parts("events")) > 2
    monkeypatch.setattr("megascope.capture.engines.recorded.columns.HELD", 2)
    again = replay(live, tmp_path / "replay.mscope", programs)
    assert maps(again) == maps(live)
    assert emitted(again) == emitted(live)


def test_an_unsealed_trace_is_replayed_with_its_tail(tmp_path: Path) -> None:
    programs = monitors("latency", "waits")
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, programs)
    with Trace.open(live) as trace:
        recording = Recording(trace)
        run = Replay(recording, programs)
        given = {k: trace.manifest[k] for k in ("engine", "clock", "programs", "perturbation")}
        tables = {"workers": trace.table("workers")}
        writer = TraceWriter.create(tmp_path / "tail.mscope", given, tables)
        decoder = run._decoder
        for part in trace.parts("events"):
            for number, n in enumerate(decoder.row_groups(part.path)):
                writer.append("events", decoder.ring_rows((part.path, number), np.arange(n)))
        for stream in ("coverage", "intervals"):
            for batch in rows(live, stream).to_batches():
                writer.append(stream, batch)
        decoder.close()
        writer.flush()
        writer.close()
    with Trace.open(tmp_path / "tail.mscope") as trace:
        assert trace.state == "unsealed"
        assert not trace.parts("events")
    again = replay(tmp_path / "tail.mscope", tmp_path / "replay.mscope", programs)
    assert maps(again) == maps(live)
    assert coverage(again, ids(programs)) == coverage(live, ids(programs))


def test_of_a_killed_recording_it_says_what_coverage_says_is_lost(tmp_path: Path) -> None:
    """Rows behind the last cut were given too, and stand for none that was lost."""
    live = record(tmp_path, SMALL + ",steps=120,lose=0.05" + SHORT, [])
    with Trace.open(live) as trace:
        ends = rows(live, "intervals")["t_end"].to_numpy()
        at = int(np.sort(np.unique(ends))[len(np.unique(ends)) // 2])
        given = {k: trace.manifest[k] for k in ("engine", "clock", "programs", "perturbation")}
        writer = TraceWriter.create(tmp_path / "tail.mscope", given, {"workers": trace.table("workers")})
        recording = Recording(trace)
        decoder = Replay(recording, monitors("latency"))._decoder
        for part in trace.parts("events"):
            for number, n in enumerate(decoder.row_groups(part.path)):
                writer.append("events", decoder.ring_rows((part.path, number), np.arange(n)))
        decoder.close()
        for stream in ("coverage", "intervals"):
            some = rows(live, stream)
            for batch in some.filter(some["t_end"].to_numpy() <= at).to_batches():
                writer.append(stream, batch)
        writer.flush()
        writer.close()
    with Trace.open(tmp_path / "tail.mscope") as trace:
        run = Replay(Recording(trace), monitors("latency"))
        output = Output(run.recording, tmp_path / "replay.mscope", run.programs, run.table())
        run.run(output)
        output.finish(run.end)
    complete = rows(live, "coverage")
    of_hooks = monitors("latency")[0][0].mask >> complete["hook"].to_numpy() & 1 == 1
    told = complete.filter((complete["t_end"].to_numpy() <= at) & of_hooks)
    assert run.missing == sum(told["lost"].to_pylist()) > 0
    assert run.eligible == sum(told["eligible"].to_pylist())


def test_engine_wide_values_are_fed_as_each_epoch_closes(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + ",epoch_ms=0.2", [])
    asked = compile_query(
        "complete { @lat = hist(exec_ns); if (p99(@lat) > 1) { emit(); } else { @below = count(); } }"
    )
    program = dataclasses.replace(asked.program, feedback=asked.feedback)
    again = replay(live, tmp_path / "replay.mscope", [(program, Limits())])
    done = [r for r in rows(live, "events").to_pylist() if r["hook"] == HOOK_BY_NAME["complete"].id]
    epochs = np.array([r["t"] // 200_000 for r in done])
    # A quantile is fed once there are a thousand values.
    fed = np.array([int((epochs < e).sum()) >= 1_000 for e in epochs])
    assert 0 < fed.sum() < len(fed)
    expected = sorted((r["worker"], r["seq"]) for r, f in zip(done, fed, strict=True) if f)
    assert sorted((r["worker"], r["seq"]) for r in rows(again, "events").to_pylist()) == expected
    assert sum(r["value"] for r in rows(again, "maps.query_below").to_pylist()) == int((~fed).sum())


def test_rows_are_emitted_exactly_while_the_p99_of_the_window_is_over_the_line(tmp_path: Path) -> None:
    """On in the epoch after the one with which the p99 crosses the line, off in the one after it falls below."""
    epoch_ns, window, line = 500_000, 4, 8_000
    spec = "layers=2,slots=6,workers=8,steps=60,epoch_ms=0.5,delay=l01.attn:8@20-39"
    live = record(tmp_path, spec, [])
    text = f"complete {{ @lat = hist(exec_ns); if (p99(@lat, {window * epoch_ns}ns) > {line}) {{ emit(); }} }}"
    text = text.replace("complete {", 'complete /operator == "attn"/ {')
    with Trace.open(live) as trace:
        tables = {name: trace.table(name) for name in ("task_classes",)}
    asked = compile_query(text, tables)
    again = replay(
        live, tmp_path / "replay.mscope", [(dataclasses.replace(asked.program, feedback=asked.feedback), Limits())]
    )
    classes = {r["id"] for r in tables["task_classes"].to_pylist() if r["operator"] == "attn"}
    done = [
        (r["t"] // epoch_ns, r["since_ns"], (r["worker"], r["seq"]))
        for r in rows(live, "events").to_pylist()
        if r["hook"] == HOOK_BY_NAME["complete"].id and r["task_class"] in classes
    ]
    epochs = np.array([e for e, _, _ in done])
    buckets = np.array([histogram.bucket(ns) for _, ns, _ in done])
    over: dict[int, bool] = {}
    value = False
    for epoch in range(int(epochs.max()) + 1):
        over[epoch] = value
        seen = np.sort(buckets[(epochs <= epoch) & (epochs > epoch - window)])
        if (epochs == epoch).any() and len(seen) >= 1_000:
            value = histogram.middle(int(seen[int(np.ceil(0.99 * len(seen))) - 1])) > line
    switched = [e for e in over if e and over[e] != over[e - 1]]
    assert len(switched) == 2
    expected = sorted(who for (epoch, _, who) in done if over[int(epoch)])
    assert expected
    assert sorted((r["worker"], r["seq"]) for r in rows(again, "events").to_pylist()) == expected


# --- what was lost -----------------------------------------------------------------------------------------------


def _by_class(path: Path, stream: str) -> dict[int, np.ndarray[Any, Any]]:
    """Bucket counts of a histogram by class, over all ranks and epochs."""
    out: dict[int, np.ndarray[Any, Any]] = {}
    for row in rows(path, stream).to_pylist():
        counts = out.setdefault(row["task_class"], np.zeros(histogram.BUCKETS, np.int64))
        np.add.at(counts, [histogram.bucket(v) for v in row["lower"]], row["counts"])
    return out


def _missing(path: Path, hook: str) -> tuple[int, int]:
    """(eligible, missing) at a hook by the account of the replay."""
    mine = [r for r in rows(path, "coverage").to_pylist() if r["hook"] == HOOK_BY_NAME[hook].id]
    return sum(r["eligible"] for r in mine), sum(r["throttled"] + r["lost"] + r["faulted"] for r in mine)


def _hold_truth(truth: Path, lossy: Path) -> None:
    eligible, missing = _missing(lossy, "complete")
    whole, part = _by_class(truth, "maps.latency_execution"), _by_class(lossy, "maps.latency_execution")
    total = sum(int(c.sum()) for c in whole.values())
    observed = sum(int(c.sum()) for c in part.values())
    assert eligible == total
    assert 0 < missing == total - observed
    for task_class, counts in whole.items():
        seen = part.get(task_class, np.zeros_like(counts))
        assert (seen <= counts).all()
        assert int(seen.sum()) <= int(counts.sum()) <= int(seen.sum()) + missing
    # Every row of a map carries the loss of its own epochs and rank, at all hooks of the program.
    lost: dict[tuple[int, int], int] = {}
    for r in rows(lossy, "coverage").to_pylist():
        lost[r["rank"], r["t_end"]] = lost.get((r["rank"], r["t_end"]), 0) + r["lost"]
    for r in rows(lossy, "maps.latency_execution").to_pylist():
        assert r["lost"] == lost[r["rank"], r["t_end"]]
    share = missing / eligible
    of_all, of_seen = np.sum(list(whole.values()), axis=0), np.sum(list(part.values()), axis=0)
    for q in (0.1, 0.5, 0.9, 0.99):
        low, high = max(0.0, (q - share) / (1 - share)), q / (1 - share)
        assert _quantile(of_seen, low) <= _quantile(of_all, q)
        if high <= 1:
            assert _quantile(of_all, q) <= _quantile(of_seen, high)


def _quantile(counts: np.ndarray[Any, Any], q: float) -> int:
    """The bucket in which it lies."""
    rank = max(1, int(np.ceil(q * counts.sum() - 1e-9)))
    return int(np.searchsorted(np.cumsum(counts), rank))


def test_the_truth_lies_within_the_bounds_when_queues_lose(tmp_path: Path) -> None:
    spec, programs = SHAPES["dynamic-2-ranks"] + SHORT, monitors("latency")
    for name in ("whole", "lossy"):
        (tmp_path / name).mkdir()
    whole = record(tmp_path / "whole", spec, programs)
    lossy = record(tmp_path / "lossy", spec + ",lose=0.04", [])
    _hold_truth(whole, replay(lossy, tmp_path / "replay.mscope", programs))


def test_the_truth_lies_within_the_bounds_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.store.gather.BATCH_ROWS", 500)
    programs = monitors("latency")
    live = record(tmp_path, SMALL + ",steps=200" + SHORT, programs, max_bytes=1_200_000)
    assert "disk_budget" in rows(live, "loss")["kind"].to_pylist()
    again = replay(live, tmp_path / "replay.mscope", programs)
    _hold_truth(live, again)
    assert "disk_budget" in rows(again, "loss")["kind"].to_pylist()
    assert None in rows(again, "coverage").filter(rows(again, "coverage")["lost"].to_numpy() > 0)["worker"].to_pylist()


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_fails_its_checksum_is_lost_and_counted(tmp_path: Path) -> None:
    programs = monitors("latency")
    live = record(tmp_path, SMALL + ",steps=120" + SHORT, programs)
    with Trace.open(live) as trace:
        part = trace.parts("events")[1].path
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    _hold_truth(live, replay(live, tmp_path / "replay.mscope", programs))


# --- what is refused ---------------------------------------------------------------------------------------------


def test_escalated_rows_are_no_population(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, monitors("slow_tasks"), raw=False)
    assert rows(live, "events").num_rows
    with pytest.raises(Refused, match=r"its rows were chosen by slow_tasks: .*; record every event"):
        replay(live, tmp_path / "replay.mscope", monitors("latency"))
    assert not (tmp_path / "replay.mscope").exists()


def test_a_recording_with_other_programs_is_replayed_from_the_recorders_rows(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, monitors("slow_tasks", "latency"))
    again = replay(live, tmp_path / "replay.mscope", monitors("latency"))
    told = [r[1:] for r in maps(live)["maps.latency_execution"]]
    assert [r[1:] for r in maps(again)["maps.latency_execution"]] == told


def test_what_cannot_be_replayed_is_refused_in_one_line(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["static"] + SHORT, [])
    out = tmp_path / "replay.mscope"
    with pytest.raises(Refused, match="program queues wants the hook assign, which was not recorded"):
        replay(live, out, monitors("queues"))
    with pytest.raises(Refused, match="two programs are called latency"):
        replay(live, out, [*monitors("latency"), *monitors("latency")])
    with pytest.raises(Refused, match="0 programs, not 1 to 31"):
        replay(live, out, [])
    with pytest.raises(Refused, match="of kind advise"):
        replay(live, out, objects("pick"))
    with pytest.raises(Refused, match="it is the trace that is replayed"):
        replay(live, live, monitors("latency"))
    assert not out.exists()


def test_an_interrupted_replay_leaves_nothing_behind(tmp_path: Path) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, [])
    with Trace.open(live) as trace:
        recording = Recording(trace)
        run = Replay(recording, monitors("latency"))
        output = Output(recording, tmp_path / "replay.mscope", run.programs, run.table())
        calls = iter([False, False, True])
        with pytest.raises(Interrupted):
            run.run(output, stopped=lambda: next(calls))
        output.abandon()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["live.mscope"]


# --- the verb ----------------------------------------------------------------------------------------------------


def test_the_verb_prints_maps_or_writes_a_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = record(tmp_path, SHAPES["dynamic"] + SHORT, [])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert megascope(["replay", str(live), "--program", "latency", "-f", "json"]) == 0
    printed, notes = capfd.readouterr()
    said = [json.loads(line) for line in printed.splitlines()]
    complete = rows(live, "events").filter(rows(live, "events")["hook"].to_numpy() == HOOK_BY_NAME["complete"].id)
    executed = [r for r in said if r["map"] == "maps.latency_execution"]
    assert {r["program_name"] for r in executed} == {"latency"}
    assert sum(r["count"] for r in executed) == complete.num_rows
    assert "coverage 100 %" in notes
    out = tmp_path / "out.mscope"
    words = ["replay", str(live), "--program", "standard", "--set", "threshold_ns=2us", "-o", str(out)]
    assert megascope(words) == 0
    assert "standard monitors left out: comm (no hook send)" in capfd.readouterr().err
    assert megascope(["sql", str(out), "SELECT count(*) AS n FROM events", "-f", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["n"] == len(emitted(out)) > 0
    assert megascope(["report", "overview", str(out)]) == 0
    with pytest.raises(Refused, match="it exists; use --force"):
        megascope(words)
    assert megascope([*words, "--force", "--quiet"]) == 0
