"""Runs of the host engine in memory, and their events in an order that tests can follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megascope.capture.engines.build import build_graph
from megascope.capture.engines.faults import KINDS, GroundTruth
from megascope.capture.engines.graph import Graph
from megascope.capture.engines.host import Spec, parse_spec, run
from megascope.capture.engines.host.engine import Result
from megascope.capture.engines.host.sinks import MemorySink
from megascope.store.tables import FLAG_RANGE, HOOK_BY_NAME

SMALL = "layers=2,d_model=128,heads=4,kv_heads=2,head_dim=32,ffn=256,vocab=512,slots=4,context=128,workers=5"
SHAPES = {
    "dynamic": SMALL + ",steps=60",
    "static": SMALL + ",steps=60,schedule=static",
    "dynamic-2-ranks": SMALL + ",steps=40,ranks=2,workers=3",
    "static-2-ranks": SMALL + ",steps=40,ranks=2,schedule=static",
    "dynamic-experts": SMALL + ",steps=40,experts=6,ffn=64",
    "static-experts-3-ranks": SMALL + ",steps=30,experts=6,heads=6,kv_heads=3,vocab=513,ranks=3,schedule=static",
    "one-worker": SMALL + ",steps=20,workers=1,ranks=2",
    "short-queues": SMALL + ",steps=40,workers=3,queue=2",
    "one-slot": SMALL + ",steps=40,slots=1,queue=1",
}
"""Deployments that differ in everything that the engine treats differently."""


@dataclass(frozen=True)
class Run:
    """A run: `events` by (worker, seq)."""

    spec: Spec
    sink: MemorySink
    result: Result
    events: NDArray[np.void]

    @property
    def graph(self) -> Graph:
        return build_graph(self.spec.model)

    @property
    def truth(self) -> GroundTruth:
        return self.result.truth

    def of(self, hook: str) -> NDArray[np.void]:
        """Events of one hook."""
        return self.events[self.events["hook"] == HOOK_BY_NAME[hook].id]

    def by_task(self, hook: str, field: str = "t") -> NDArray[np.int64]:
        """[steps, tasks + 1] a field of each task's only event of that hook, -1 where there is none."""
        rows = self.of(hook)
        out = np.full((self.result.steps, self.graph.tasks + 1), -1, np.int64)
        for row in rows:
            count = int(row["tile"]) if row["flags"] & FLAG_RANGE else 1
            step, first = int(row["task"]) >> 32, int(row["task"]) & 0xFFFFFFFF
            assert (out[step, first : first + count] == -1).all(), f"{hook} fired twice for task {first}"
            out[step, first : first + count] = row[field]
        return out

    def duration(self) -> NDArray[np.int64]:
        """[steps, tasks + 1] from start to complete."""
        return self.by_task("complete") - self.by_task("start")


def spec_of(text: str) -> Spec:
    """A spec in which a later key takes the place of an earlier one; fault controls add up."""
    parts = [p.partition("=") for p in text.split(",")]
    last = {key: value for key, _, value in parts if key not in KINDS}
    faults = [f"{key}={value}" for key, _, value in parts if key in KINDS]
    return parse_spec(",".join([f"{k}={v}" for k, v in last.items()] + faults))


def execute(text: str) -> Run:
    """Run a spec in memory."""
    spec, sink = spec_of(text), MemorySink()
    result = run(spec, sink)
    events = sink.events
    return Run(spec, sink, result, events[np.lexsort((events["seq"], events["worker"]))])


@lru_cache(maxsize=32)
def shape(name: str) -> Run:
    """One of SHAPES, run once for all tests that look at it."""
    return execute(SHAPES[name])
