"""Pairing on what the host engine fires: every task found, and under loss nothing that is not so."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
import oracle_pairing as oracle
import pyarrow as pa
import pytest

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.host import parse_spec, run
from megascope.capture.engines.host.engine import exported_hooks
from megascope.capture.engines.host.sinks import MemorySink
from megascope.store import stored
from megascope.store.pairing import Context, Derived, Pairer
from megascope.store.tables import EVENTS, HOOKS, RECORDER
from megascope.store.tiles import LEVELS, TileBuilder

SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,vocab=512,slots=4,context=128"
SHAPES = {
    "dynamic": SMALL + ",ffn=256,workers=5,steps=12",
    "static": SMALL + ",ffn=256,workers=5,steps=12,schedule=static",
    "two ranks": SMALL + ",ffn=256,workers=3,steps=8,ranks=2",
    "experts": SMALL + ",ffn=64,workers=5,steps=8,experts=6",
    "short queues": SMALL + ",ffn=256,workers=3,steps=8,queue=2",
}


class Run:
    """A run's events in order of arrival, and what it should come to."""

    def __init__(self, text: str) -> None:
        spec = parse_spec(text)
        sink = MemorySink()
        self.result = run(spec, sink)
        self.events = sink.events
        self.tasks = build_graph(spec.model).tasks
        self.workers = np.arange(spec.workers * spec.model.ranks)
        self.hooks = frozenset(h.id for h in HOOKS if exported_hooks(spec) >> h.id & 1)

    def part(self, begin: int, end: int) -> pa.Table:
        rows = self.events[begin:end]
        columns: dict[str, Any] = {n: np.ascontiguousarray(rows[n]) for n in rows.dtype.names or ()}
        columns["by"] = np.full(len(rows), RECORDER, np.uint32)
        batches = [b for b, _ in stored.stored_events(columns, stored.arrival_to_order(columns))]
        return pa.Table.from_batches(batches, schema=EVENTS.schema)

    def pair(self, parts: int) -> list[Derived]:
        rng = random.Random(parts)
        cuts = sorted(rng.randrange(len(self.events)) for _ in range(parts - 1))
        pairer = Pairer(Context(self.workers, self.hooks))
        edges = zip([0, *cuts], [*cuts, len(self.events)], strict=True)
        return [*(pairer.feed(self.part(a, b)) for a, b in edges), pairer.finish()]


@lru_cache
def of(text: str) -> Run:
    return Run(text)


def rows_of(tables: list[pa.Table]) -> list[dict[str, Any]]:
    return [r for t in tables for r in t.to_pylist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_task_is_found_whole(shape: str) -> None:
    a_run = of(SHAPES[shape])
    tasks = rows_of([d.tasks for d in a_run.pair(5)])
    assert len(tasks) == a_run.tasks * a_run.result.steps
    assert len({t["task"] for t in tasks}) == len(tasks)
    for task in tasks:
        assert (task["missing"], task["flags"] & ~3) == (0, 0)
        # Receives are assigned when their rank may wait for them, and ready when the data is there.
        assert (task["flags"] & 2 != 0) == (task["assign"] is not None and task["assign"] < task["ready"])
        assert task["ready"] <= task["start"] < task["complete"]
    waits = rows_of([d.waits for d in a_run.pair(5)])
    assert all(w["missing"] == 0 or w["open"] for w in waits)
    assert sum(w["open"] for w in waits) <= len(a_run.workers)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lose", [0.0, 0.1, 0.6])
def test_agrees_with_the_oracle_under_loss(shape: str, lose: float) -> None:
    a_run = of(f"{SHAPES[shape]},lose={lose}")
    events = a_run.part(0, len(a_run.events)).to_pylist()
    expected = oracle.tasks(events, a_run.hooks), oracle.waits(events, a_run.hooks)
    for parts in (1, 4):
        derived = a_run.pair(parts)
        tasks, waits = rows_of([d.tasks for d in derived]), rows_of([d.waits for d in derived])
        assert sorted(tasks, key=repr) == sorted(expected[0], key=lambda r: repr({n: r[n] for n in tasks[0]}))
        assert sorted(map(ordered, waits)) == sorted(map(ordered, expected[1]))


def ordered(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_known_under_loss_is_what_happened(shape: str) -> None:
    """The same run without loss tells: a value is the truth or null, and what was lost is said to be missing."""
    truth = {(t["rank"], t["task"]): t for t in rows_of([d.tasks for d in of(SHAPES[shape]).pair(2)])}
    lossy = of(f"{SHAPES[shape]},lose=0.3")
    found = rows_of([d.tasks for d in lossy.pair(3)])
    assert len({(t["rank"], t["task"]) for t in found}) == len(found)
    recorded = 0
    for task in found:
        told = truth[task["rank"], task["task"]]
        for name, value in task.items():
            # A range row names the request of the batch where its tasks are of several.
            if name not in ("missing", "flags", "request") and value is not None:
                assert value == told[name], name
        recorded += len(oracle.ALL & lossy.hooks & {1, 2, 3, 4}) - task["missing"].bit_count()
    assert recorded == len(oracle.each_task(lossy.part(0, len(lossy.events)).to_pylist()))


def test_tiles_hold_all_the_time_of_the_tasks() -> None:
    a_run = of(SHAPES["two ranks"] + ",lose=0.1")
    builder = TileBuilder()
    derived = a_run.pair(6)
    tiles = [builder.feed(d.tasks, d.waits, d.frontier) for d in derived] + [builder.finish()]
    tasks, waits = rows_of([d.tasks for d in derived]), rows_of([d.waits for d in derived])
    for level in LEVELS:
        here = [r for r in rows_of(tiles) if r["level"] == level]
        assert sum(r["busy"] for r in here) == sum(t["exec_ns"] or 0 for t in tasks)
        assert sum(r["wait_communication"] for r in here) == sum(w["ns"] or 0 for w in waits if w["dep_class"] == 2)
        assert sum(r["tasks"] for r in here) == sum(t["start"] is not None for t in tasks)
