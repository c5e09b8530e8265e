"""The device VM against the oracle, bit for bit: maps, rows emitted, counters; random programs, budgets and epochs.

Batches of 1, 7 and 32 rows: what a warp takes at once, and so how its lanes interleave, must not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hand_made import COMPLETE, a_map, program, rows, trusted
from hypothesis import given, settings
from random_programs import batches, programs
from random_programs import limits as program_limits
from vm_events import events, run_both, some_limits
from vm_generator import draw
from vm_process import COMPILER, MISSING, DeviceVm, VmProcess, guessed_call_maps, same

from megascope.capture.programs.execution import U64, Count, Limits
from megascope.capture.programs.maps import MapKind
from megascope.capture.programs.native import Native
from megascope.capture.programs.program import Program
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Rejected, Verdict
from megascope.capture.programs.verifier import verify

pytestmark = pytest.mark.skipif(COMPILER is None, reason=MISSING)


@pytest.fixture(scope="module")
def process() -> Iterator[VmProcess]:
    p = VmProcess()
    yield p
    p.close()


def agree(process: VmProcess, seed: int) -> None:
    r = Random(seed)
    verdict, workers, limits = draw(seed, seed % 2 == 1), r.randint(1, 3), some_limits(r)
    vm = DeviceVm(process, verdict, workers, limits, batch=r.choice((1, 7, 32, 32)), room=r.choice((1000, 4096)))
    oracle = Reference(verdict, workers, limits)
    try:
        run_both(r, oracle, vm, workers)
    except AssertionError as e:
        e.add_note(f"seed {seed}, {'serial' if seed % 2 else 'SIMT'}")
        raise
    assert not oracle.counters[..., Count.FAULTED].any()


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_programs(process: VmProcess, first: int) -> None:
    for seed in range(first, first + 20):
        agree(process, seed)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_random_programs(process: VmProcess) -> None:
    for seed in range(1_000, 11_000):
        agree(process, seed)


def agree_as_verified(process: VmProcess, seed: int) -> bool:
    """The same with the verifier's own verdict, against native code. False: it rejects the program."""
    r = Random(seed)
    try:
        verdict = verify(draw(seed, seed % 2 == 1).program)
    except Rejected:
        return False
    workers, limits = r.randint(1, 3), some_limits(r)
    vm = DeviceVm(process, verdict, workers, limits, batch=r.choice((1, 7, 32, 32)))
    try:
        run_both(r, Native(verdict, workers, limits), vm, workers)
    except AssertionError as e:
        e.add_note(f"seed {seed}, {'SIMT' if verdict.simt else verdict.serial_because}")
        raise
    return True


def test_verified_programs_agree_with_native_code(process: VmProcess) -> None:
    assert sum(agree_as_verified(process, seed) for seed in range(2_000, 2_016)) >= 12


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_verified_programs_agree_with_native_code(process: VmProcess) -> None:
    assert sum(agree_as_verified(process, seed) for seed in range(20_000, 22_000)) >= 1_500


def agree_with_native(process: VmProcess, verdict: Verdict, few: Limits, given_batches: list[U64]) -> None:
    vm, native = DeviceVm(process, verdict, 3, few), Native(verdict, 3, few)
    for batch in given_batches:
        a, b = np.zeros(len(batch), np.uint32), np.zeros(len(batch), np.uint32)
        native.run(batch, a, 1)
        vm.run(batch, b, 1)
        assert np.array_equal(a, b)
        assert np.array_equal(native.counters, vm.counters)
        for x, y in zip(native.close(np.arange(3)), vm.close(np.arange(3)), strict=True):
            assert same(x, y)
    for i in range(len(verdict.program.maps)):
        assert all(same(native.entries(i, w), vm.entries(i, w)) for w in range(3)), verdict.program.maps[i].name


@settings(max_examples=15)
@given(programs(simt=False), program_limits, batches(3))
def test_serial_programs_that_fill_their_maps_agree_with_native_code(
    process: VmProcess, verdict: Verdict, few: Limits, given_batches: list[U64]
) -> None:
    agree_with_native(process, verdict, few, given_batches)


@settings(max_examples=15)
@given(programs(simt=True, entries=2048), program_limits, batches(3))
def test_simt_programs_with_shared_maps_agree_with_native_code(
    process: VmProcess, verdict: Verdict, few: Limits, given_batches: list[U64]
) -> None:
    agree_with_native(process, verdict, few, given_batches)


def serial_or_not(p: Program, *, serial: bool, frames: dict[int, int] | None = None) -> Verdict:
    because = "it says so" if serial else ""
    return trusted(p, call_maps=guessed_call_maps(p.insns), serial_because=because, frames=frames or {})


UPSERT = """
    ldxh %r3, [%r1+52]
    stxdw [%r10-8], %r3
    ldxdw %r3, [%r1+24]
    lddw %r1, map:m
    mov %r2, %r10
    add %r2, -8
    call map_add
    mov %r0, 0
    exit
"""


@pytest.mark.parametrize("entries", [1, 2, 7, 31])
@pytest.mark.parametrize("batch", [1, 5, 32])
def test_a_full_map_refuses_the_same_keys_where_one_call_inserts(process: VmProcess, entries: int, batch: int) -> None:
    p = program(UPSERT, a_map(MapKind.HASH, key=8, entries=entries, aggregate=True))
    verdict = serial_or_not(p, serial=False)
    vm, oracle = DeviceVm(process, verdict, 2, batch=batch), Reference(verdict, 2)
    r = Random(entries)
    for _ in range(3):
        drawn = [{"worker": i % 2, "task_class": r.randrange(400), "aux": r.getrandbits(9)} for i in range(90)]
        some = rows(drawn)
        for e in (vm, oracle):
            e.run(some, np.zeros(90, np.uint32), 0)
        closed = list(zip(vm.close(np.arange(2)), oracle.close(np.arange(2)), strict=True))
        assert all(same(a, b) for a, b in closed)
        assert all(b.refused > 0 and len(b.keys) == entries for _, b in closed)


def test_deleting_and_inserting_keeps_every_key_findable(process: VmProcess) -> None:
    """The index of a hash map closes its gaps, entries stay dense: 3,000 steps on a map that is mostly nearly full."""
    text = """
        mov %r6, %r1
        ldxh %r3, [%r6+52]
        stxdw [%r10-8], %r3
        ldxdw %r3, [%r6+24]
        stxdw [%r10-16], %r3
        lddw %r1, map:m
        mov %r2, %r10
        add %r2, -8
        ldxb %r4, [%r6+62]
        jeq %r4, 0, drop
        mov %r3, %r10
        add %r3, -16
        mov %r4, 0
        lddw %r1, map:m
        call map_update_elem
        ja out
    drop:
        call map_delete_elem
    out:
        jeq %r0, 0, end
        mov %r1, %r6
        call emit
    end:
        mov %r0, 0
        exit
    """
    p = program(text, a_map(MapKind.HASH, key=8, entries=30))
    verdict = serial_or_not(p, serial=True)
    vm, oracle = DeviceVm(process, verdict, 2), Reference(verdict, 2)
    r = Random(4)
    for _ in range(30):
        drawn = [
            {"worker": r.randrange(2), "task_class": r.randrange(40), "aux": r.getrandbits(60)} for _ in range(100)
        ]
        some = rows([event | {"flags": r.random() < 0.7} for event in drawn])
        a, b = np.zeros(100, np.uint32), np.zeros(100, np.uint32)
        vm.run(some, a, 0)
        oracle.run(some, b, 0)
        assert np.array_equal(a, b)
        for w in range(2):
            assert same(vm.entries(0, w), oracle.entries(0, w))


FIRST_SIGHT = """
    mov %r6, %r1
    ldxh %r3, [%r6+52]
    stxdw [%r10-8], %r3
    stdw [%r10-16], 1
    lddw %r1, map:m
    mov %r2, %r10
    add %r2, -8
    mov %r3, %r10
    add %r3, -16
    mov %r4, 1
    call map_update_elem
    jne %r0, 0, out
    mov %r1, %r6
    call emit
    out: mov %r0, 0
    exit
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_insert_on_first_sight_is_right_in_one_batch(process: VmProcess, workers: int) -> None:
    """Lanes in lockstep would all find the key missing: a serial program runs them one after another, by worker."""
    verdict = serial_or_not(program(FIRST_SIGHT, a_map(MapKind.HASH, key=8, entries=64)), serial=True)
    vm = DeviceVm(process, verdict, workers)
    some = rows([{"worker": i % workers, "task_class": i % 4} for i in range(32)])
    by = np.zeros(32, np.uint32)
    vm.run(some, by, 0)
    seen: set[tuple[int, int]] = set()
    for i, emitted in enumerate(by):
        assert bool(emitted) == ((i % workers, i % 4) not in seen)
        seen.add((i % workers, i % 4))


def test_lanes_that_call_from_different_places_meet_in_the_function(process: VmProcess) -> None:
    text = """
        ldxh %r6, [%r1+52]
        mov %r7, 3
        jgt %r6, 15, high
        mov %r1, %r6
        call local double
        ja tell
    high:
        mov %r1, %r6
        add %r1, 100
        call local double
        add %r0, %r7
    tell:
        mov %r3, %r0
        stxdw [%r10-8], %r6
        lddw %r1, map:m
        mov %r2, %r10
        add %r2, -8
        call map_add
        mov %r0, 0
        exit
    double:
        mov %r7, %r1
        stxdw [%r10-8], %r7
        ldxdw %r0, [%r10-8]
        add %r0, %r1
        exit
    """
    p = program(text, a_map(MapKind.HASH, key=8, entries=64))
    double = next(pc for pc in range(len(p.insns) - 1, 0, -1) if p.insns[pc].op == 0xBF and p.insns[pc].dst == 7)
    verdict = serial_or_not(p, serial=False, frames={0: 8, double: 8})
    vm = DeviceVm(process, verdict, 1)
    vm.run(rows([{"task_class": i} for i in range(32)]), np.zeros(32, np.uint32), 0)
    e = vm.entries(0, 0)
    got = dict(zip(e.keys.view(np.uint64)[:, 0].tolist(), e.values.view(np.uint64)[:, 0].tolist(), strict=True))
    assert got == {i: 2 * i if i <= 15 else 2 * (i + 100) + 3 for i in range(32)}


def test_budgets_and_allowances_in_one_batch(process: VmProcess) -> None:
    text = "mov %r6, %r1\ncall emit\nmov %r0, 0\nexit"
    verdict = trusted(program(text), cost=10)
    for batch in (1, 32):
        for limits in (Limits(95, 4), Limits(10, 0), Limits(9, 9), Limits(), Limits(320, 32)):
            vm, oracle = DeviceVm(process, verdict, 3, limits, batch=batch), Reference(verdict, 3, limits)
            some = rows([{"worker": (i * i) % 3} for i in range(64)])
            a, b = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
            vm.run(some, a, 5)
            oracle.run(some, b, 5)
            assert np.array_equal(a, b)
            assert np.array_equal(vm.counters, oracle.counters)
            assert oracle.counters[:, COMPLETE].sum() >= 64


@pytest.mark.parametrize("sanitizer", ["address,undefined", pytest.param("thread", marks=pytest.mark.slow)])
def test_monitors_insert_into_a_shared_map_at_once(sanitizer: str) -> None:
    """Four threads as four monitors; exact totals, exactly max_entries, nothing lost and nothing torn."""
    process = VmProcess(sanitizer)
    hist = UPSERT.replace("map:m", "map:h").replace("map_add", "hist_add")
    text = "mov %r7, %r1\n" + UPSERT.replace("exit", "mov %r1, %r7\n" + hist)
    maps = (
        a_map(MapKind.HASH, key=8, entries=100, aggregate=True, shared=True),
        a_map(MapKind.HIST, "h", key=8, value=7840, entries=64, shared=True),
    )
    verdict = serial_or_not(program(text, *maps), serial=False)
    vm, r = DeviceVm(process, verdict, 8), Random(1)
    for epoch in range(3):
        n = 4_000
        drawn = [{"worker": r.randrange(8), "task_class": r.randrange(64), "aux": r.getrandbits(9)} for _ in range(n)]
        some = rows(drawn)
        vm.run_in_threads(some, 4)
        oracle = Reference(verdict, 8)
        oracle.run(some, np.zeros(n, np.uint32), 0)
        a, b = vm.close(np.arange(8)), oracle.close(np.arange(8))
        assert len(a) == len(b) == 2
        assert all(same(x, y) for x, y in zip(a, b, strict=True)), epoch
    crowd = rows([{"worker": i % 8, "task_class": r.randrange(1000), "aux": 1} for i in range(4_000)])
    vm.run_in_threads(crowd, 4)
    keyed, _ = vm.close(np.arange(8))
    counted = int(keyed.values.view(np.uint64).sum())
    assert len(keyed.keys) == 100
    assert counted + keyed.refused == 4_000
    assert len(np.unique(keyed.keys, axis=0)) == 100
    process.close()


def test_an_epoch_that_cannot_be_exported_is_kept_and_says_so(process: VmProcess) -> None:
    p = program(UPSERT, a_map(MapKind.HASH, key=8, entries=64, aggregate=True))
    verdict = serial_or_not(p, serial=False)
    vm, oracle, r = DeviceVm(process, verdict, 1), Reference(verdict, 1), Random(2)

    def run(*executions: DeviceVm | Reference) -> None:
        some = events(r, 40, 1)
        for e in executions:
            e.run(some, np.zeros(40, np.uint32), 0)

    run(vm, oracle)
    first = oracle.close(np.arange(1))
    vm.end_epochs([0])
    run(vm, oracle)
    vm.end_epochs([0])
    vm.end_epochs([0])
    run(vm, oracle)
    (one,) = vm.take([0])
    assert (one.epochs, same(one.export, first[0])) == (1, True)
    vm.end_epochs([0])
    (three,) = vm.take([0])
    assert (three.epochs, same(three.export, oracle.close(np.arange(1))[0])) == (3, True)
    run(vm, oracle)
    vm.end_epochs([0])
    (last,) = vm.take([0])
    assert (last.epochs, same(last.export, oracle.close(np.arange(1))[0])) == (1, True)
