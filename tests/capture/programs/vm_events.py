"""Rows drawn for the device VM's tests, and one look at an execution beside another."""

from __future__ import annotations

from random import Random

import numpy as np
from vm_generator import COST
from vm_process import DeviceVm, same

from megascope.capture.programs.execution import U64, Execution, Limits
from megascope.store.tables import EVENT_ROW

EDGES = (0, 1, 5, 31, 32, 100, 1 << 40, (1 << 64) - 1)


def events(r: Random, n: int, workers: int) -> U64:
    """[n, 8] rows; numbers are small, edges or anything."""
    out = np.frombuffer(r.randbytes(64 * n), np.uint8).copy().view(EVENT_ROW.dtype)
    for name in ("t", "task", "aux"):
        out[name] = [r.choice((r.choice(EDGES), r.getrandbits(10), r.getrandbits(64))) for _ in range(n)]
    out["worker"] = [r.randrange(workers) for _ in range(n)]
    out["hook"] = [r.choice((3, 4, 4, 5, 6)) for _ in range(n)]
    return out.view(np.uint64).reshape(n, 8)


def some_limits(r: Random) -> Limits:
    """None, or few enough to be met."""
    return Limits(r.choice((1 << 62, COST * 40, COST * 7 + 3)), r.choice((1 << 62, 5, 40)))


def run_both(r: Random, one: Execution, vm: DeviceVm, workers: int) -> None:
    """Some epochs of both; AssertionError at the first thing that they do not agree on."""
    maps = vm.program.maps
    for _ in range(r.randint(1, 4)):
        rows = events(r, r.choice((3, 20, 50)), workers)
        a, b = np.zeros(len(rows), np.uint32), np.zeros(len(rows), np.uint32)
        one.run(rows, a, 3)
        vm.run(rows, b, 3)
        if r.random() < 0.5:
            cell = (len(maps) - 1, r.randrange(2), r.getrandbits(64), r.getrandbits(20))
            one.feed(*cell)
            vm.feed(*cell)
        assert np.array_equal(a, b), "rows emitted"
        assert np.array_equal(one.counters, vm.counters), "counters"
        for i, m in enumerate(maps):
            for w in range(workers):
                assert same(one.entries(i, w), vm.entries(i, w)), f"map {i} of worker {w}: {m}"
        closing = np.array(sorted(r.sample(range(workers), r.choice((workers, r.randint(0, workers))))), np.int64)
        x, y = one.close(closing), vm.close(closing)
        assert len(x) == len(y), "maps that closed"
        for e, f in zip(x, y, strict=True):
            assert same(e, f), f"what map {e.map} of worker {e.worker} held when it closed"
