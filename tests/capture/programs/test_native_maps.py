"""Maps of machine code: churn against the oracle, exact fullness, memory that is there only when it is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_made import COMPLETE, a_map, program, rows
from native_comparison import same, same_exports

from megascope.capture.programs.execution import Count, Limits
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.native import Native
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verifier import verify
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

AT = EVENT_ROW.offsets
HOOKS = [HOOK_BY_NAME[n].id for n in ("ready", "start", "complete", "wait")]


def churn(key_size: int) -> str:
    """By hook: update, delete, add and count. Keys are `task` over and over, cut at key_size."""
    key = "".join(f"stxdw [%r10-{72 - 8 * i}], %r1\n" for i in range(-(-key_size // 8)))
    start = f"""
        mov %r6, %r1
        ldxdw %r1, [%r6+{AT["task"]}]
        {key}
        ldxdw %r3, [%r6+{AT["aux"]}]
        mov %r2, %r10
        add %r2, -72
    """
    return f"""
        update: {start}
        stxdw [%r10-80], %r3
        lddw %r1, map:m
        mov %r3, %r10
        add %r3, -80
        mov %r4, 0
        call map_update_elem
        mov %r0, 0
        exit
        delete: {start}
        lddw %r1, map:m
        call map_delete_elem
        mov %r0, 0
        exit
        add: {start}
        lddw %r1, map:m
        call map_add
        mov %r0, 0
        exit
        count: {start}
        lddw %r1, map:lat
        call stats_add
        mov %r0, 0
        exit
    """


@pytest.mark.parametrize("key_size", [1, 2, 3, 4, 5, 7, 8, 12, 16, 23, 64])
def test_keys_come_and_go(key_size: int) -> None:
    hooks = {name: (hook,) for name, hook in zip(("update", "delete", "add", "count"), HOOKS, strict=True)}
    maps = (
        a_map(MapKind.HASH, key=key_size, entries=37),
        a_map(MapKind.STATS, "lat", key_size, 32, 50, aggregate=True),
    )
    verdict = verify(program(churn(key_size), *maps, hooks=hooks))
    rng = np.random.default_rng(key_size)
    native, reference = Native(verdict, 2), Reference(verdict, 2)
    for tasks in (20, 60, 45):
        events = np.zeros(900, EVENT_ROW.dtype)
        events["hook"] = rng.choice(HOOKS, 900)
        # Far apart in some bytes, neighbours in others: long probe sequences in some of the sizes.
        events["task"] = rng.integers(0, tasks, 900) * rng.choice([1, 1 << 8, 1 << 32, 0x0101_0101_0101_0101])
        events["aux"] = rng.integers(0, 1 << 40, 900)
        events["worker"] = rng.integers(0, 2, 900)
        batch = events.view(np.uint64).reshape(-1, 8)
        for execution in (native, reference):
            execution.run(batch, np.zeros(900, np.uint32), 0)
        same(native, reference)
        same_exports(native.close(np.arange(2)), reference.close(np.arange(2)))


COUNT = """
    ldxdw %r3, [%r1+24]
    ldxdw %r2, [%r1+16]
    stxdw [%r10-8], %r2
    mov %r2, %r10
    add %r2, -8
    lddw %r1, map:m
    call map_add
    mov %r0, 0
    exit
"""


@pytest.mark.parametrize("entries", [1, 16, 17, 1000])
def test_a_map_refuses_exactly_when_it_is_full(entries: int) -> None:
    native = Native(verify(program(COUNT, a_map(MapKind.HASH, key=8, entries=entries))), 1)
    batch = rows({"task": 7 * i, "aux": 1} for i in range(entries + 3))
    for _ in range(2):
        native.run(batch, np.zeros(len(batch), np.uint32), 0)
    out = native.entries(0, 0)
    assert out.refused == 6
    assert out.keys.view(np.uint64)[:, 0].tolist() == [7 * i for i in range(entries)]
    assert out.values.view(np.uint64)[:, 0].tolist() == [2] * entries


HIST = COUNT.replace("map_add", "hist_add")
STATUS = Path("/proc/self/status")


def resident() -> int:
    """Bytes."""
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0]) << 10


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc")
def test_memory_is_what_is_touched() -> None:
    """132 workers × 4096 histograms declared are 4 GB; one key each was used."""
    verdict = verify(program(HIST, a_map(MapKind.HIST, key=8, value=7840, entries=4096, aggregate=True)))
    before = resident()
    native = Native(verdict, 132)
    batch = rows({"task": 1, "aux": 5, "worker": w} for w in range(132))
    native.run(batch, np.zeros(len(batch), np.uint32), 0)
    assert resident() - before < 64 << 20
    closed = native.close(np.arange(132))
    assert [(e.worker, len(e.keys), int(e.values.view(np.uint64)[0, 0])) for e in closed] == [
        (w, 1, 1) for w in range(132)
    ]


def test_executions_of_a_rank_share_what_is_shared() -> None:
    shared = Map("m", MapKind.HASH, 8, 8, 3, shared=True, aggregate=True)
    verdict = verify(program(COUNT, shared))
    one = Native(verdict, 2)
    other = Native(verdict, 2, shared=one.shared)
    for execution, tasks in ((one, (1, 2)), (other, (2, 3)), (one, (4,))):
        batch = rows({"task": t, "aux": 10, "worker": t % 2} for t in tasks)
        execution.run(batch, np.zeros(len(batch), np.uint32), 0)
    assert other.entries(0, 1).keys.view(np.uint64)[:, 0].tolist() == [1, 2, 3]
    assert other.close(np.array([0])) == []
    (closed,) = other.close(np.arange(2))
    assert (closed.worker, closed.refused) == (-1, 1)
    assert closed.values.view(np.uint64)[:, 0].tolist() == [10, 20, 10]
    assert len(one.entries(0, 0).keys) == 0


def test_feedback_cells_are_seen_by_later_rows() -> None:
    text = """
        mov %r6, %r1
        stw [%r10-4], 1
        mov %r2, %r10
        add %r2, -4
        lddw %r1, map:cells
        call map_lookup_elem
        jeq %r0, 0, out
        ldxdw %r2, [%r0+0]
        ldxdw %r3, [%r6+24]
        jle %r3, %r2, out
        mov %r1, %r6
        call emit
        out: mov %r0, 0
        exit
    """
    native = Native(verify(program(text, a_map(MapKind.FEEDBACK, "cells", value=16, entries=2))), 1)
    by = np.zeros(2, np.uint32)
    native.run(rows([{"aux": 9}]), by[:1], 3)
    native.feed(0, 1, 100, 7)
    native.run(rows([{"aux": 9}]), by[1:], 3)
    assert by.tolist() == [8, 0]
    assert native.entries(0, 0).values.view(np.uint64).tolist() == [[0, 0], [100, 7]]
    for m, index in ((0, 2), (0, -1), (1, 0)):
        with pytest.raises(ValueError, match="no feedback cell"):
            native.feed(m, index, 1, 1)


def test_budgets_and_allowances() -> None:
    """At a cost of 4 an event, 10 instructions hold two; of the events that ran, one row may be emitted."""
    verdict = verify(program("call emit\nmov %r0, 0\nexit"))
    assert verdict.cost == {COMPLETE: 4}
    native = Native(verdict, 1, Limits(10, 1))
    for _ in range(2):
        by = np.zeros(4, np.uint32)
        native.run(rows([{}, {"hook": 1}, {}, {}]), by, 0)
        assert by.tolist() == [1, 0, 0, 0]
        native.close(np.arange(1))
    counts = native.counters[0, COMPLETE]
    assert {c.name: int(counts[c]) for c in Count} == {
        "OBSERVED": 4,
        "THROTTLED": 2,
        "FAULTED": 0,
        "EMITTED": 4,
        "EMIT_THROTTLED": 2,
    }
    assert native.counters.sum() == counts.sum()
