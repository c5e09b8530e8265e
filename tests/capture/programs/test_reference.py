"""The oracle as an execution: what programs do to maps, rows and counters, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import COMPLETE, a_map, program, rows, trusted
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs.event_environment import Environment
from megascope.capture.programs.execution import Count, Execution, Export, Limits
from megascope.capture.programs.helpers import E_2BIG, E_EXIST, E_INVAL, E_NOENT, HELPERS
from megascope.capture.programs.interpreter import Interpreter
from megascope.capture.programs.map_state import MapState
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.memory import Fault, Memory
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Access, Region
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

START = HOOK_BY_NAME["start"].id
AT = EVENT_ROW.offsets
ALL = np.arange(2)


def run(e: Execution, *events: dict[str, int], bit: int = 0) -> list[int]:
    """Which events were exported."""
    given = rows(events)
    by = np.zeros(len(given), np.uint32)
    e.run(given, by, bit)
    assert set(by.tolist()) <= {0, 1 << bit}
    return by.astype(bool).astype(int).tolist()


def numbers(e: Export) -> dict[int, tuple[int, ...]]:
    values = e.values.view(np.uint64)
    return {int.from_bytes(k.tobytes(), "little"): tuple(map(int, v)) for k, v in zip(e.keys, values, strict=True)}


def by_class(call: str, *, value: str = "aux", key: str = "task_class") -> str:
    """A program that calls a helper with a key and a number of the row."""
    return f"""
        ldxh %r3, [%r1+{AT[key]}]
        stxw [%r10-4], %r3
        ldxdw %r3, [%r1+{AT[value]}]
        lddw %r1, map:m
        mov %r2, %r10
        add %r2, -4
        call {call}
        mov %r0, 0
        exit
    """


UPSERTS = [
    ("map_add", MapKind.HASH, {1: (12,), 2: (5,)}),
    ("map_min", MapKind.HASH, {1: (3,), 2: (5,)}),
    ("map_max", MapKind.HASH, {1: (9,), 2: (5,)}),
    ("map_add", MapKind.ARRAY, {1: (12,), 2: (5,)}),
    ("map_max", MapKind.ARRAY, {1: (9,), 2: (5,)}),
    ("stats_add", MapKind.STATS, {1: (2, 12, 3, 9), 2: (1, 5, 5, 5)}),
]


@pytest.mark.parametrize(("helper", "kind", "want"), UPSERTS)
def test_upserts(helper: str, kind: MapKind, want: dict[int, tuple[int, ...]]) -> None:
    e = Reference(trusted(program(by_class(helper), a_map(kind, aggregate=True))), 2)
    run(e, {"task_class": 1, "aux": 9}, {"task_class": 2, "aux": 5}, {"task_class": 1, "aux": 3})
    closed = e.close(ALL)
    assert [(x.map, x.worker) for x in closed] == [(0, 0), (0, 1)]
    assert numbers(closed[0]) == want
    assert numbers(closed[1]) == {}


def test_histograms() -> None:
    e = Reference(trusted(program(by_class("hist_add"), a_map(MapKind.HIST))), 1)
    run(e, {"task_class": 1, "aux": 9}, {"task_class": 1, "aux": 5})
    (closed,) = e.close(np.arange(1))
    words = numbers(closed)[1]
    assert words[:4] == (2, 14, 5, 9)
    assert [i for i, n in enumerate(words[4:]) if n] == [5, 9]


def test_maps_are_per_worker_unless_shared() -> None:
    text = by_class("map_add") + by_class("map_add").replace("map:m", "map:all")
    text = text.replace("mov %r0, 0\n        exit", "mov %r1, %r6", 1)
    maps = (a_map(MapKind.HASH, aggregate=True), a_map(MapKind.HASH, "all", aggregate=True, shared=True))
    p = program("mov %r6, %r1\n" + text, *maps)
    e = Reference(trusted(p), 2)
    run(e, {"worker": 0, "aux": 1}, {"worker": 1, "aux": 10}, {"worker": 0, "aux": 100})
    assert numbers(e.entries(0, 0)) == {0: (101,)}
    assert numbers(e.entries(0, 1)) == {0: (10,)}
    assert numbers(e.entries(1, 0)) == numbers(e.entries(1, 1)) == {0: (111,)}
    assert e.entries(1, 0).worker == -1
    first = e.close(np.array([0]))
    assert [(x.map, x.worker) for x in first] == [(0, 0)], "the shared map waits for all workers"
    both = e.close(ALL)
    assert [(x.map, x.worker) for x in both] == [(0, 0), (0, 1), (1, -1)]
    assert numbers(both[2]) == {0: (111,)}
    other = Reference(trusted(p), 2, shared=e.shared)
    run(other, {"aux": 7})
    assert numbers(e.entries(1, 0)) == {0: (7,)}


def test_full_maps_refuse_exactly_and_count() -> None:
    e = Reference(trusted(program(by_class("map_add"), a_map(MapKind.HASH, entries=2, aggregate=True))), 1)
    run(e, *({"task_class": c, "aux": 1} for c in (1, 2, 3, 1, 3, 4)))
    assert e.entries(0, 0).refused == 3
    (closed,) = e.close(np.arange(1))
    assert (numbers(closed), closed.refused) == ({1: (2,), 2: (1,)}, 3)
    (empty,) = e.close(np.arange(1))
    assert (numbers(empty), empty.refused) == ({}, 0)


def test_an_index_beyond_an_array_is_refused() -> None:
    e = Reference(trusted(program(by_class("map_add"), a_map(MapKind.ARRAY, entries=2))), 1)
    run(e, *({"task_class": c, "aux": 1} for c in (1, 2, 65535)))
    assert (numbers(e.entries(0, 0)), e.entries(0, 0).refused) == ({0: (0,), 1: (1,)}, 2)


LOOKUP = f"""
    ldxh %r3, [%r1+{AT["task_class"]}]
    stxw [%r10-4], %r3
    lddw %r1, map:m
    mov %r2, %r10
    add %r2, -4
    call map_lookup_elem
    jeq %r0, 0, out
    ldxdw %r1, [%r0]
    add %r1, 1
    stxdw [%r0], %r1
    out: mov %r0, 0
    exit
"""


def test_lookup_gives_the_value_itself() -> None:
    e = Reference(trusted(program(LOOKUP, a_map(MapKind.ARRAY, entries=3))), 1)
    run(e, *({"task_class": c} for c in (2, 2, 3, 0)))
    assert numbers(e.entries(0, 0)) == {0: (1,), 1: (0,), 2: (2,)}
    assert e.counters[0, COMPLETE, Count.OBSERVED] == 4
    e = Reference(trusted(program(LOOKUP, a_map(MapKind.HASH, entries=3))), 1)
    run(e, {"task_class": 2})
    assert numbers(e.entries(0, 0)) == {}


def result_of(body: str, *maps: Map, event: dict[str, int] | None = None) -> int:
    """What a program leaves in r0, read through a map of its own."""
    text = body + f"\nstxdw [%r10-16], %r0\nstw [%r10-4], 0\nlddw %r1, map:{len(maps)}\n" + KEY + (
        "mov %r3, %r10\nadd %r3, -16\nmov %r4, 0\ncall map_update_elem\nmov %r0, 0\nexit"
    )  # fmt: skip
    p = program(text, *maps, a_map(MapKind.ARRAY, "out", entries=1))
    e = Reference(trusted(p), 1)
    run(e, event or {})
    assert e.counters[0, COMPLETE, Count.OBSERVED] == 1
    return numbers(e.entries(len(maps), 0))[0][0]


KEY = "mov %r2, %r10\nadd %r2, -4\n"


def update(key: int, flags: int, value: int = 5) -> str:
    put = f"stw [%r10-4], {key}\nstdw [%r10-16], {value}\nlddw %r1, map:0\n" + KEY
    return put + f"mov %r3, %r10\nadd %r3, -16\nmov %r4, {flags}\ncall map_update_elem\n"


DELETE = "lddw %r1, map:0\n" + KEY + "call map_delete_elem\n"


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (update(1, 0), 0),
        (update(1, 1), 0),
        (update(1, 2), E_NOENT),
        (update(1, 0) + update(1, 1), E_EXIST),
        (update(1, 0) + update(1, 2), 0),
        (update(1, 3), E_INVAL),
        (update(1, -1), E_INVAL),
        (update(1, 0) + update(2, 0) + update(3, 0), E_2BIG),
        (update(1, 0) + update(2, 0) + update(3, 2), E_NOENT),
        (update(1, 0) + update(2, 0) + update(2, 0), 0),
        (update(1, 0) + DELETE, 0),
        (update(1, 0) + DELETE + DELETE, E_NOENT),
        (update(1, 0) + update(2, 0) + DELETE + update(3, 0), 0),
        ("call ktime_get_ns", 1234567),
        ("call emit", 0),
    ],
)
def test_what_helpers_return(body: str, want: int) -> None:
    got = result_of(body, a_map(MapKind.HASH, entries=2), event={"t": 1234567})
    assert got == want % (1 << 64)


def test_a_deleted_value_is_out_of_reach() -> None:
    text = update(1, 0) + "lddw %r1, map:0\n" + KEY + "call map_lookup_elem\nmov %r6, %r0\n" + DELETE
    e = Reference(trusted(program(text + "ldxdw %r0, [%r6]\nexit", a_map(MapKind.HASH))), 1)
    run(e, {})
    assert e.counters[0, COMPLETE].tolist() == [0, 0, 1, 0, 0]


def test_closed_epochs_and_the_time_before_the_first() -> None:
    closed = "lddw %r1, map:m\nmov %r2, %r10\nadd %r2, -4\ncall map_closed\njeq %r0, 0, out\nldxdw %r3, [%r0]\n"
    text = by_class("map_add").replace("mov %r0, 0\n        exit", closed)
    text += "lddw %r1, map:seen\n" + KEY + "call map_add\nout: mov %r0, 0\nexit"
    e = Reference(trusted(program(text, a_map(MapKind.HASH, aggregate=True), a_map(MapKind.HASH, "seen"))), 2)
    run(e, {"aux": 5}, {"aux": 6})
    assert numbers(e.entries(1, 0)) == {}
    e.close(np.array([0]))
    run(e, {"aux": 1}, {"worker": 1, "aux": 50})
    assert numbers(e.entries(1, 0)) == {0: (11,)}
    assert numbers(e.entries(1, 1)) == {}, "its own epoch has not closed"
    e.close(ALL)
    run(e, {}, {"worker": 1})
    assert numbers(e.entries(1, 0)) == {0: (12,)}
    assert numbers(e.entries(1, 1)) == {0: (50,)}


def test_feedback_is_seen_by_rows_that_run_later() -> None:
    text = f"""
        mov %r6, %r1
        stw [%r10-4], 1
        lddw %r1, map:m
        {KEY}
        call map_lookup_elem
        jeq %r0, 0, exit
        ldxdw %r2, [%r0]
        ldxdw %r3, [%r6+{AT["aux"]}]
        jle %r3, %r2, exit
        mov %r1, %r6
        call emit
        exit
    """
    e = Reference(trusted(program(text, a_map(MapKind.FEEDBACK, value=16, entries=2))), 2)
    assert run(e, {"aux": 5}, {"aux": 0}) == [1, 0]
    e.feed(0, 1, 100, 3)
    assert run(e, {"aux": 5}, {"aux": 101}, {"worker": 1, "aux": 101}, {"worker": 1, "aux": 100}, bit=31) == [
        0,
        1,
        1,
        0,
    ]
    assert numbers(e.entries(0, 1)) == {0: (0, 0), 1: (100, 3)}
    assert e.close(ALL) == []
    with pytest.raises(ValueError):
        e.feed(0, 2, 1, 1)
    with pytest.raises(ValueError):
        e.feed(1, 0, 1, 1)


def test_globals() -> None:
    text = """
        lddw %r1, value:.rodata+8
        ldxdw %r2, [%r1]
        lddw %r3, value:.bss
        lock add [%r3], %r2
        mov %r0, 0
        exit
    """
    fixed = a_map(MapKind.ARRAY, ".rodata", value=16, entries=1, read_only=True, initial=bytes(8) + b"\7" + bytes(7))
    e = Reference(trusted(program(text, fixed, a_map(MapKind.ARRAY, ".bss", entries=1))), 1)
    run(e, {}, {})
    assert numbers(e.entries(1, 0)) == {0: (14,)}
    assert numbers(e.entries(0, 0)) == {0: (0, 7)}


EMIT = f"ldxh %r2, [%r1+{AT['task_class']}]\njeq %r2, 0, out\ncall emit\nmov %r0, 0\nout: exit"
EMIT_TWICE = "mov %r6, %r1\ncall emit\nmov %r1, %r6\ncall emit\nexit"


def test_emission_is_once_per_event() -> None:
    e = Reference(trusted(program(EMIT_TWICE)), 1)
    assert run(e, {}, {}) == [1, 1]
    assert e.counters[0, COMPLETE].tolist() == [2, 0, 0, 2, 0]


def test_emission_adds_a_bit_and_leaves_the_others() -> None:
    e = Reference(trusted(program(EMIT)), 1)
    by = np.array([4, 4], np.uint32)
    e.run(rows([{"task_class": 1}, {"task_class": 0}]), by, 3)
    assert by.tolist() == [12, 4]


def test_an_emit_limit_is_per_worker_and_epoch() -> None:
    e = Reference(trusted(program(EMIT)), 2, Limits(rows=2))
    some = [{"worker": w, "task_class": 1} for w in (0, 0, 0, 1, 0, 1)]
    assert run(e, *some) == [1, 1, 0, 1, 0, 1]
    assert e.counters[:, COMPLETE].tolist() == [[4, 0, 0, 4, 2], [2, 0, 0, 2, 0]]
    e.close(np.array([0]))
    assert run(e, *some[:4]) == [1, 1, 0, 0]


def test_a_budget_is_the_worst_case_whatever_a_run_needs() -> None:
    e = Reference(trusted(program(EMIT), cost=10), 2, Limits(instructions=35))
    some = [{"worker": w, "task_class": 1} for w in (0, 0, 0, 0, 1)]
    assert run(e, *some) == [1, 1, 1, 0, 1]
    assert e.counters[:, COMPLETE].tolist() == [[3, 1, 0, 3, 0], [1, 0, 0, 1, 0]]
    exact = Reference(trusted(program(EMIT), cost=10), 1, Limits(instructions=20))
    assert run(exact, *some[:4]) == [1, 1, 0, 0], "a budget may be spent to the last instruction"
    e.close(np.array([1]))
    assert run(e, *some) == [0, 0, 0, 0, 1]
    e.close(ALL)
    assert run(e, *some) == [1, 1, 1, 0, 1]
    assert e.counters[:, COMPLETE].tolist() == [[6, 6, 0, 6, 0], [3, 0, 0, 3, 0]]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([START, COMPLETE]), st.integers(0, 1)), max_size=30),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_counters_add_up(events: list[tuple[int, int, int]], budget: int, allowed: int) -> None:
    """Each event is observed or throttled; each emission written or refused; a cheaper entry still fits the rest."""
    p = program("a: ja b\nexit\nb: " + EMIT, hooks={"a": (COMPLETE,), "b": (START,)})
    v = trusted(p, cost={COMPLETE: 20, START: 9})
    e = Reference(v, 2, Limits(budget, allowed))
    bits = run(e, *({"worker": w, "hook": h, "task_class": c} for w, h, c in events))
    spent, emitted, want = [0, 0], [0, 0], []
    observed = np.zeros((2, 16), int)
    for w, h, c in events:
        ran = spent[w] + v.cost[h] <= budget
        spent[w] += v.cost[h] * ran
        observed[w, h] += ran
        emitted[w] += ran and c
        want.append(int(ran and c and emitted[w] <= allowed))
    assert bits == want
    assert np.array_equal(e.counters[..., Count.OBSERVED], observed)
    seen = e.counters[..., Count.OBSERVED] + e.counters[..., Count.THROTTLED]
    assert seen.sum() == len(events)
    assert (e.counters[..., Count.EMITTED] - e.counters[..., Count.EMIT_THROTTLED]).sum() == sum(bits)


def test_each_hook_has_its_entry_and_others_are_not_looked_at() -> None:
    here = "here: stw [%r10-4], 9\nmov %r3, 1\nlddw %r1, map:m\n" + KEY + "call map_add\nexit"
    text = "there: " + by_class("map_add").strip() + "\n" + here
    p = program(text, a_map(MapKind.HASH), hooks={"there": (START, 6), "here": (COMPLETE,)})
    e = Reference(trusted(p), 1)
    run(e, {"hook": START, "task_class": 1, "aux": 5}, {"hook": COMPLETE}, {"hook": 6, "aux": 1}, {"hook": 7})
    assert numbers(e.entries(0, 0)) == {0: (1,), 1: (5,), 9: (1,)}
    assert e.counters[0, :, Count.OBSERVED].nonzero()[0].tolist() == [START, COMPLETE, 6]


def test_rows_of_nobody_are_an_error_of_the_caller() -> None:
    e = Reference(trusted(program("mov %r0, 0\nexit")), 2)
    with pytest.raises(ValueError, match="worker 2"):
        run(e, {"worker": 2})
    with pytest.raises(ValueError, match="hook 16"):
        run(e, {"hook": 16})


FAULTY = [
    ("ldxb %r0, [%r1+64]\nexit", "nobody's"),
    ("stb [%r1], 0\nexit", "read-only"),
    ("lddw %r1, map:9\nexit", "there is no map 9"),
    ("lddw %r1, value:9\nexit", "no global"),
    ("lddw %r1, value:0\nexit", "no global"),
    ("lddw %r1, value:3+8\nexit", "no global"),
    ("lddw %r1, value:3-1\nexit", "no global"),
    ("lddw %r1, map:0\nldxb %r0, [%r1]\nexit", "nobody's"),
    ("mov %r2, %r10\nadd %r2, -4\nstw [%r2], 0\ncall map_lookup_elem\nexit", "no map of its kind"),
    ("lddw %r1, map:1\nmov %r2, %r10\ncall map_lookup_elem\nexit", "no map of its kind"),
    ("lddw %r1, map:0\nmov %r2, %r10\nadd %r2, -3\ncall map_lookup_elem\nexit", "nobody's"),
    ("stw [%r10-4], 0\nlddw %r1, map:0\n" + KEY + "call map_closed\nexit", "no closed epochs"),
    ("stw [%r10-4], 0\nlddw %r1, map:2\n" + KEY + "mov %r3, 1\ncall map_add\nexit", "are no u64"),
    ("stw [%r10-4], 0\nlddw %r1, map:3\n" + KEY + "mov %r3, 1\ncall map_add\nexit", "is read-only"),
    ("stw [%r10-4], 0\nlddw %r1, map:3\n" + KEY + "call map_lookup_elem\nstb [%r0], 1\nexit", "are read-only"),
    ("lddw %r1, value:3\nstb [%r1], 1\nexit", "are read-only"),
    ("mov %r1, %r10\ncall emit\nexit", "not the context"),
    ("a: ja a", "more than 1000 instructions"),
]


@pytest.mark.parametrize(("text", "reason"), FAULTY)
def test_what_no_verified_program_does(text: str, reason: str) -> None:
    maps = (
        a_map(MapKind.HASH),
        a_map(MapKind.HIST, "h"),
        a_map(MapKind.HASH, "wide", value=16),
        a_map(MapKind.ARRAY, ".rodata", value=8, entries=1, read_only=True),
    )
    p = program(text, *maps)
    plain = Reference(trusted(p), 1)
    assert run(plain, {}) == [0]
    assert plain.counters[0, COMPLETE].tolist() == [0, 0, 1, 0, 0]
    memory, states = Memory(), {i: MapState(m) for i, m in enumerate(maps)}
    event = Environment(plain.verdict, memory, states, rows([{}]).tobytes(), instrumented=False)
    with pytest.raises(Fault, match=reason):
        Interpreter(p.insns).run(0, (event.context,), memory, event, 1000)


def test_effects_before_a_fault_stand() -> None:
    e = Reference(trusted(program("call emit\nldxb %r0, [%r0]\nexit")), 1)
    assert run(e, {}) == [1]
    assert e.counters[0, COMPLETE].tolist() == [0, 0, 1, 1, 0]


def test_instrumented_runs_hold_the_verdict_to_its_word() -> None:
    p = program(LOOKUP, a_map(MapKind.ARRAY), a_map(MapKind.ARRAY, "other"))
    slots = {0: Access(Region.CONTEXT, offset=AT["task_class"], size=2), 1: Access(Region.STACK)}
    slots |= {8: Access(Region.VALUE, 0), 10: Access(Region.VALUE, 0)}
    cost = 11 + HELPERS[0].cost
    good = {"access": slots, "call_maps": {6: 0}, "cost": {COMPLETE: cost}, "frames": {0: 8}}

    def seen(**change: object) -> None:
        run(Reference(trusted(p, **good | change), 1, instrumented=True), {"task_class": 2})

    seen()
    for change, reason in [
        ({"access": slots | {8: Access(Region.VALUE, 1)}}, "says map 1, not 0"),
        ({"access": slots | {8: Access(Region.STACK)}}, "Region.STACK"),
        ({"access": slots | {0: Access(Region.CONTEXT, offset=AT["worker"], size=2)}}, "of the row"),
        ({"access": {k: v for k, v in slots.items() if k != 10}}, "says None"),
        ({"call_maps": {6: 1}}, "which the verdict does not name"),
        ({"call_maps": {}}, "which the verdict does not name"),
        ({"reachable": frozenset(range(12)) - {9}}, "no path comes here"),
        ({"cost": {COMPLETE: cost - 1}}, "more than"),
        ({"frames": {0: 3}}, "nobody's"),
    ]:
        with pytest.raises(Fault, match=reason):
            seen(**change)
