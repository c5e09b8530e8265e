"""`megascope lint` finds each fault that is planted in a sound recording, and nothing in the sound one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.analyze.lint import lint
from megascope.analyze.lint_rules import RULES
from megascope.store.tables import COMPILER_TABLES, DEP_CLASSES, ENGINE_TABLES, EVENTS, HOOKS, RING_ROW
from megascope.store.trace import Trace, TraceWriter

Rows = dict[str, np.ndarray]
SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.mscope"))
SINCE = [h.id for h in HOOKS if h.since]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of two ranks under a dynamic schedule."""
    out = tmp_path_factory.mktemp("lint") / "sound.mscope"
    spec = "demo:steps=12,ranks=2,workers=4,layers=2,slots=4"
    subprocess.run([sys.executable, "-m", "megascope", "capture", spec, "-o", str(out), "--quiet"], check=True)
    return out


def ring_rows(trace: Trace) -> Rows:
    """The events as the ring rows that they were, by column."""
    table = pa.concat_tables([pq.read_table(p.path) for p in trace.parts("events")]).select(EVENTS.names)
    aux = table["aux"].to_numpy(zero_copy_only=False)
    since = table["since_ns"].to_numpy(zero_copy_only=False)
    t = table["t"].to_numpy()
    carried = np.isin(table["hook"].to_numpy(), SINCE)
    known = np.where(np.isnan(since), 0, t - np.nan_to_num(since))
    columns: Rows = {n: table[n].to_numpy().copy() for n in RING_ROW.names if n != "aux"}
    columns["aux"] = np.where(carried, known, np.nan_to_num(aux)).astype(np.int64)
    return columns


def write(path: Path, sound: Trace, rows: Rows, tables: dict[str, pa.Table]) -> None:
    given = {k: sound.manifest[k] for k in ("name", "engine", "clock", "programs", "perturbation")}
    writer = TraceWriter.create(path, given, {t.name: tables[t.name] for t in COMPILER_TABLES})
    batch = [pa.array(rows[c.name].astype(RING_ROW.dtype[c.name])) for c in RING_ROW]
    writer.append("events", pa.record_batch(batch, schema=RING_ROW.schema))
    for t in ENGINE_TABLES:
        for b in tables[t.name].combine_chunks().to_batches():
            writer.upsert(t.name, b)
    writer.finish("ended")


def first(rows: Rows, hook: int, nth: int = 20) -> int:
    return int(np.nonzero(rows["hook"] == hook)[0][nth])


def _set(hook: int, column: str, value: int) -> Callable[[Rows, dict[str, pa.Table]], None]:
    def plant(rows: Rows, _: dict[str, pa.Table]) -> None:
        rows[column][first(rows, hook)] = value

    return plant


def _drop(hook: int) -> Callable[[Rows, dict[str, pa.Table]], None]:
    def plant(rows: Rows, _: dict[str, pa.Table]) -> None:
        at = first(rows, hook)
        for name in rows:
            rows[name] = np.delete(rows[name], at)

    return plant


def _copy(hook: int, **changes: int) -> Callable[[Rows, dict[str, pa.Table]], None]:
    """The event once more, under a sequence number of its own unless `changes` say so."""

    def plant(rows: Rows, _: dict[str, pa.Table]) -> None:
        at = first(rows, hook)
        last = int(rows["seq"][rows["worker"] == rows["worker"][at]].max())
        t = int(rows["t"][rows["worker"] == rows["worker"][at]].max())
        for name in rows:
            value = {"seq": last + 1, "t": t + 1, **changes}.get(name, rows[name][at])
            rows[name] = np.append(rows[name], value)

    return plant


def _add(hook: int, column: str, amount: int) -> Callable[[Rows, dict[str, pa.Table]], None]:
    def plant(rows: Rows, _: dict[str, pa.Table]) -> None:
        rows[column][first(rows, hook)] += amount

    return plant


def _empty(table: str) -> Callable[[Rows, dict[str, pa.Table]], None]:
    def plant(_: Rows, tables: dict[str, pa.Table]) -> None:
        tables[table] = tables[table].slice(0, 0)

    return plant


def _repeat_sequence(rows: Rows, _: dict[str, pa.Table]) -> None:
    at = first(rows, 3)
    before = np.nonzero((rows["worker"] == rows["worker"][at]) & (rows["seq"] < rows["seq"][at]))[0]
    rows["seq"][at] = rows["seq"][before].max()


def _see(missing: int) -> Callable[[Rows, dict[str, pa.Table]], None]:
    """A wait that saw all but `missing` of the releases that it wants."""

    def plant(rows: Rows, _: dict[str, pa.Table]) -> None:
        at = int(np.nonzero((rows["hook"] == 5) & (rows["dep"] != 0))[0][20])
        wanted = int(rows["aux"][at]) & WANTED
        rows["aux"][at] = wanted - missing << 32 | wanted

    return plant


def _wait_otherwise(rows: Rows, tables: dict[str, pa.Table]) -> None:
    """A task's wait is of a kind that its class does not declare."""
    at = int(np.nonzero((rows["hook"] == 5) & (rows["dep"] != 0) & (rows["task"] != 0))[0][20])
    expected = {r["id"]: r["expected_dep_classes"] for r in tables["task_classes"].to_pylist()}
    rows["dep_class"][at] = min(set(range(1, len(DEP_CLASSES))) - set(expected[int(rows["task_class"][at])]))


def _silence(rows: Rows, _: dict[str, pa.Table]) -> None:
    keep = rows["hook"] != 7
    for name in rows:
        rows[name] = rows[name][keep]


def _slot_twice(_: Rows, tables: dict[str, pa.Table]) -> None:
    rows = tables["step_requests"].to_pylist()
    tables["step_requests"] = pa.Table.from_pylist(
        [*rows, rows[0] | {"request": rows[0]["request"] + 1_000}], schema=tables["step_requests"].schema
    )


def _step_back(rows: Rows, _: dict[str, pa.Table]) -> None:
    begins = np.nonzero((rows["hook"] == 11) & (rows["flags"] & 1 == 1))[0]
    rows["step"][begins[5]] = 2


WANTED = 0xFFFF_FFFF
PLANTED = [
    ("undeclared_hook", _set(3, "hook", 13)),
    ("silent_hook", _silence),
    ("undeclared_class", _set(3, "task_class", 4_000)),
    ("undeclared_worker", _set(3, "worker", 77)),
    ("undeclared_dependency", _set(7, "dep", 1_000_000)),
    ("undeclared_task", _set(3, "task", 9 << 32 | 3_000_000)),
    ("class_disagrees", _add(4, "task_class", 1)),
    ("tile_disagrees", _add(4, "tile", 1)),
    ("worker_of_two_ranks", _set(3, "rank", 1)),
    ("time_goes_back", _add(3, "t", -50_000_000)),
    ("repeated_sequence_number", _repeat_sequence),
    ("since_in_the_future", _set(4, "aux", 1 << 50)),
    ("start_twice", _copy(3)),
    ("complete_twice", _copy(4)),
    ("start_without_complete", _drop(4)),
    ("complete_without_start", _drop(3)),
    ("resume_without_wait", _drop(5)),
    ("wait_within_wait", _drop(6)),
    ("released_too_often", _add(7, "aux", 1 << 40)),
    ("wanted_disagrees", _add(7, "aux", 5)),
    ("counter_goes_back", _copy(7)),
    ("wait_for_nothing", _see(0)),
    ("unknown_request", _set(3, "request", 55_555)),
    ("unknown_request_set", _empty("request_sets")),
    ("unknown_request_state", _add(10, "aux", 40)),
    ("slot_of_two_requests", _slot_twice),
    ("queue_over_capacity", _add(2, "aux", 1 << 44)),
    ("assigned_to_nobody", _add(2, "aux", 500 << 48)),
    ("communication_without_round", _set(8, "comm", 0)),
    ("received_before_sent", _set(9, "comm", 3_000_000)),
    ("unexpected_dependency_class", _wait_otherwise),
    ("empty_range", _copy(1, flags=128, tile=0)),
    ("step_goes_back", _step_back),
    ("iteration_disagrees", _add(4, "step", 3)),
]


def test_every_rule_has_its_fault() -> None:
    assert {rule.name for rule in RULES} == {name for name, _ in PLANTED}


@pytest.mark.parametrize(("rule", "plant"), PLANTED, ids=[r for r, _ in PLANTED])
def test_a_planted_fault_is_found(sound: Path, tmp_path: Path, rule: str, plant) -> None:  # type: ignore[no-untyped-def]
    with Trace.open(sound) as trace:
        rows = ring_rows(trace)
        tables = {t.name: trace.table(t.name) for t in (*COMPILER_TABLES, *ENGINE_TABLES)}
        plant(rows, tables)
        write(tmp_path / "faulty.mscope", trace, rows, tables)
    found = {f.rule.name: f for f in lint(tmp_path / "faulty.mscope").findings}
    assert rule in found, f"found only {sorted(found)}"
    assert found[rule].place
    assert found[rule].cases >= 1


def test_a_wait_that_lacks_one_release_is_no_wait_for_nothing(sound: Path, tmp_path: Path) -> None:
    with Trace.open(sound) as trace:
        rows = ring_rows(trace)
        tables = {t.name: trace.table(t.name) for t in (*COMPILER_TABLES, *ENGINE_TABLES)}
        _see(1)(rows, tables)
        write(tmp_path / "sound.mscope", trace, rows, tables)
    assert lint(tmp_path / "sound.mscope").findings == []


def test_the_sound_run_is_silent_and_so_are_the_samples(sound: Path) -> None:
    for path in (sound, *SAMPLES):
        verdict = lint(path)
        assert [(f.rule.name, f.place, f.cases) for f in verdict.findings] == []


def test_halves_are_not_judged_where_events_are_missing(tmp_path: Path) -> None:
    out = tmp_path / "lossy.mscope"
    spec = "demo:steps=12,workers=4,layers=2,slots=4,lose=0.2"
    subprocess.run([sys.executable, "-m", "megascope", "capture", spec, "-o", str(out), "--quiet"], check=True)
    verdict = lint(out)
    assert verdict.findings == []
    assert set(verdict.not_judged) == {r.name for r in RULES if r.whole}
    assert "events lost before their monitor" in verdict.loss


def test_the_verb_says_where_and_what_it_breaks(sound: Path, tmp_path: Path) -> None:
    with Trace.open(sound) as trace:
        rows = ring_rows(trace)
        tables = {t.name: trace.table(t.name) for t in (*COMPILER_TABLES, *ENGINE_TABLES)}
        _set(3, "task_class", 4_000)(rows, tables)
        write(tmp_path / "faulty.mscope", trace, rows, tables)
    run = [sys.executable, "-m", "megascope", "lint"]
    said = subprocess.run([*run, str(tmp_path / "faulty.mscope")], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "error: undeclared_class: not so that every task class is in task_classes; answers by class" in said.stdout
    assert "task_class 4000: 1 times, first at t = " in said.stdout
    assert subprocess.run([*run, str(sound)], capture_output=True, check=False).returncode == 0
    rules = subprocess.run([*run, str(sound), "--rules"], capture_output=True, text=True, check=True).stdout
    assert all(f"{r.name}: " in rules for r in RULES)
