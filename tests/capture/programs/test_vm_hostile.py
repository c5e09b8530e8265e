"""Whatever the device VM is given, it touches nothing but its own memory, comes to an end, and says what it stopped.

Three kinds of harm: eBPF that nobody verified; pre-decoded words damaged under a right checksum; words damaged without
one. The VM runs in a process whose memory is exactly as large as it was told, under the address and undefined-behaviour
sanitizers: a report is a failure here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hand_made import COMPLETE, a_map, program, rows, trusted
from vm_events import events
from vm_generator import draw
from vm_process import COMPILER, MISSING, DeviceVm, Unsound, VmProcess, guessed_call_maps

from megascope.capture.programs import vmcode
from megascope.capture.programs.execution import Count, Limits
from megascope.capture.programs.isa import Insn, decode, operation
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.verdict import Verdict
from megascope.capture.programs.vmcode import Reason

pytestmark = pytest.mark.skipif(COMPILER is None, reason=MISSING)
WORKERS = 2


@pytest.fixture(scope="module")
def process() -> Iterator[VmProcess]:
    p = VmProcess()
    yield p
    p.close()


@cache
def sound(seed: int) -> Verdict:
    """A program to harm; short of breath, so that a loop without an end is stopped soon."""
    verdict = draw(seed, seed % 2 == 1)
    return replace(verdict, cost=dict.fromkeys(verdict.cost, 300))


def look(vm: DeviceVm, r: Random) -> tuple[int, int]:
    """Run, close and read everything; events observed and faulted, which are all that were eligible."""
    given = events(r, 40, WORKERS)
    vm.run(given, np.zeros(40, np.uint32), 0)
    vm.close(np.arange(WORKERS))
    vm.entries(r.randrange(len(vm.program.maps)), r.randrange(WORKERS))
    hooks = given.view(np.uint8).reshape(40, 64)[:, 60]
    eligible = sum(vm.program.entry(int(h)) is not None for h in hooks)
    counted = vm.counters.sum(axis=(0, 1))
    assert counted[Count.OBSERVED] + counted[Count.FAULTED] + counted[Count.THROTTLED] == eligible
    return int(counted[Count.OBSERVED]), int(counted[Count.FAULTED])


def unverified(r: Random, verdict: Verdict) -> Verdict:
    """The program with some instructions changed, or others altogether; not verified."""
    insns = list(verdict.program.insns)
    if r.random() < 0.15:
        insns = list(decode(r.randbytes(8 * r.randint(2, 60))))
    for _ in range(r.choice((1, 2, 5, 20))):
        at = r.randrange(len(insns))
        old = insns[at]
        match r.randrange(6):
            case 0:
                insns[at] = old._replace(op=r.randrange(256))
            case 1:
                insns[at] = old._replace(dst=r.randrange(11), src=r.randrange(11))
            case 2:
                insns[at] = old._replace(off=r.choice((r.randint(-300, 300), r.randint(-(1 << 15), (1 << 15) - 1))))
            case 3:
                insns[at] = old._replace(imm=r.choice((r.randint(-300, 300), r.randint(-(1 << 31), (1 << 31) - 1))))
            case 4:
                insns[at] = insns[r.randrange(len(insns))]
            case 5:
                insns[at] = Insn(*decode(r.randbytes(8))[0])
    code = tuple(insns)
    entries = verdict.program.entries if len(code) == len(verdict.program.insns) else verdict.program.entries[:1]
    changed = type(verdict.program)("damaged", code, entries, verdict.program.maps)
    calls = {pc: m % len(changed.maps) for pc, m in guessed_call_maps(code).items()}
    because = "it says so" if r.random() < 0.5 else ""
    return trusted(changed, cost=r.choice((50, 300)), call_maps=calls, serial_because=because, access=verdict.access)


def run_unverified(process: VmProcess, seed: int) -> tuple[int, int] | None:
    r = Random(seed)
    code = unverified(r, sound(r.randrange(200)))
    code = trusted(code.program, **{k: getattr(code, k) for k in ("cost", "call_maps", "serial_because")})
    try:
        vm = DeviceVm(process, code, WORKERS, Limits(1 << 40, 7), room=1000)
    except Unsound:
        return None
    return look(vm, r)


def damaged(r: Random, words: bytes, right_checksum: bool) -> bytes:
    """Words with some bytes changed, mostly in the instructions."""
    out = bytearray(words)
    header = np.frombuffer(words[:160], vmcode.HEADER)[0]
    code = 160 + 64 * int(header["maps"])
    for _ in range(r.choice((1, 1, 2, 4, 8))):
        if r.random() < 0.85:
            at = code + 16 * r.randrange(int(header["slots"])) + r.choice((0, 1, 2, 3, 4, 5, 8, 9, 14, 15))
        else:
            at = r.randrange(len(out))
        out[at] = r.choice((r.randrange(256), r.randrange(48), out[at] ^ 1 << r.randrange(8)))
    return sealed(out) if right_checksum else bytes(out)


def sealed(words: bytearray) -> bytes:
    """With the checksum that they should have."""
    words[8:16] = vmcode.checksum(np.frombuffer(bytes(words), np.uint64)).to_bytes(8, "little")
    return bytes(words)


def run_damaged(process: VmProcess, seed: int) -> tuple[int, int] | None:
    r = Random(seed)
    verdict = sound(r.randrange(200))
    words = damaged(r, vmcode.render(verdict), True)
    try:
        vm = DeviceVm(process, verdict, WORKERS, Limits(1 << 40, 7), words=words, room=1000)
    except Unsound:
        return None
    given = events(r, 40, WORKERS)
    vm.run(given, np.zeros(40, np.uint32), 0)
    vm.end_epochs(range(WORKERS))
    vm.records(range(WORKERS))
    counted = vm.counters.sum(axis=(0, 1))
    return int(counted[Count.OBSERVED]), int(counted[Count.FAULTED])


def tried(process: VmProcess, run: object, seeds: range) -> None:
    """Every seed, and that they were worth trying: some refused, some stopped, some that ran."""
    assert callable(run)
    refused = observed = faulted = 0
    for seed in seeds:
        try:
            said = run(process, seed)
        except AssertionError as e:
            e.add_note(f"seed {seed}")
            raise
        refused += said is None
        observed += said is not None and said[0] > 0
        faulted += said is not None and said[1] > 0
    assert refused > len(seeds) // 50
    assert observed > len(seeds) // 10
    assert faulted > len(seeds) // 20


def test_code_that_nobody_verified(process: VmProcess) -> None:
    tried(process, run_unverified, range(1_500))


def test_damaged_words_under_a_right_checksum(process: VmProcess) -> None:
    tried(process, run_damaged, range(1_500))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("run", [run_unverified, run_damaged])
def test_a_hundred_thousand_of_each(process: VmProcess, run: object) -> None:
    tried(process, run, range(10_000, 110_000))


def test_a_wrong_checksum_is_refused(process: VmProcess) -> None:
    for seed in range(100):
        r = Random(seed)
        verdict = sound(seed)
        good = vmcode.render(verdict)
        words = damaged(r, good, False)
        if words != good:
            with pytest.raises(Unsound):
                DeviceVm(process, verdict, WORKERS, words=words)


def test_every_field_of_header_and_maps(process: VmProcess) -> None:
    """A number of the header or of a map that is another one is refused, or harms nobody."""
    verdict = sound(7)
    good = vmcode.render(verdict)
    fields = [(n, 0) for n in vmcode.HEADER.names or () if n != "checksum"]
    fields += [(n, 160 + 64 * k) for k in range(len(verdict.program.maps)) for n in vmcode.MAP.names or ()]
    refused = 0
    for name, at in fields:
        kind, offset = (vmcode.MAP if at else vmcode.HEADER).fields[name][:2]  # type: ignore[index]
        size = kind.base.itemsize
        where = at + offset + (4 * size if kind.shape and kind.shape[0] > 4 else 0)
        old = int.from_bytes(good[where : where + size], "little")
        for new in {0, 1, old + 1, old - 1, 2 * old, old // 2, 1 << 8 * size - 1, (1 << 8 * size) - 2} - {old}:
            words = bytearray(good)
            words[where : where + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
            try:
                vm = DeviceVm(process, verdict, WORKERS, words=sealed(words), room=1000)
            except Unsound:
                refused += 1
                continue
            assert name in (
                "cost",
                "most_cost",
                "entry",
                "flags",
                "value_size",
                "key_size",
                "kind",
                "initial",
                "reserved",
            )
            vm.run(events(Random(1), 40, WORKERS), np.zeros(40, np.uint32), 0)
            vm.end_epochs(range(WORKERS))
            vm.records(range(WORKERS))
    assert refused > 100


@pytest.mark.parametrize("slot", [0, 1])
def test_an_entry_beyond_the_code_is_refused(process: VmProcess, slot: int) -> None:
    verdict = sound(7)
    words = bytearray(vmcode.render(verdict))
    at = 128 + 2 * COMPLETE
    words[at : at + 2] = (len(verdict.program.insns) + slot).to_bytes(2, "little")
    with pytest.raises(Unsound):
        DeviceVm(process, verdict, WORKERS, words=sealed(words))


@pytest.mark.parametrize("slots", [3, 8, 12])
def test_an_index_of_another_size_is_refused_though_its_bank_fits(process: VmProcess, slots: int) -> None:
    p = program("exit", a_map(MapKind.HASH, entries=8))
    words = bytearray(vmcode.render(trusted(p)))
    m = np.frombuffer(words, vmcode.MAP, 1, 160)
    assert m["slots"] == 16
    m["bank_words"] = int(m["bank_words"][0]) + slots - 16
    m["slots"] = slots
    header = np.frombuffer(words, vmcode.HEADER, 1)
    header["worker_words"] = int(header["worker_words"][0]) + slots - 16
    del m, header
    with pytest.raises(Unsound):
        DeviceVm(process, trusted(p), 1, words=sealed(words))


@pytest.mark.parametrize("change", ["fewer words", "more words", "fewer arena words", "more workers"])
def test_sizes_that_do_not_fit_are_refused(process: VmProcess, change: str) -> None:
    verdict = draw(3, True)
    good = vmcode.render(verdict)
    words = good[:-8] if change == "fewer words" else good + bytes(8) if change == "more words" else good
    arena = vmcode.arena(verdict.program.maps).bytes(2) // 8 - (change == "fewer arena words")
    for workers, want in ((2 + (change == "more workers"), 0), (2, int(change == "more workers"))):
        head = np.array([workers, 1, 1, 0, 1000, arena], np.uint64)
        assert process.ask(1, np.concatenate([head, np.frombuffer(words, np.uint64)]))[0] == want


MAPS = (
    a_map(MapKind.HASH),
    a_map(MapKind.ARRAY, "array"),
    a_map(MapKind.ARRAY, ".rodata", value=16, entries=1, read_only=True, initial=bytes(range(16))),
    a_map(MapKind.HASH, "sums", aggregate=True),
)
KEY = "mov %r2, %r10\nadd %r2, -4\n"
STOPPED = [
    ("ldxb %r0, [%r1+64]\nexit", Reason.OUTSIDE),
    ("ldxdw %r0, [%r1+57]\nexit", Reason.OUTSIDE),
    ("ldxdw %r0, [%r1-1]\nexit", Reason.OUTSIDE),
    ("mov %r1, 0\nldxb %r0, [%r1]\nexit", Reason.OUTSIDE),
    ("lddw %r1, 0xffffffffffffffff\nldxb %r0, [%r1]\nexit", Reason.OUTSIDE),
    ("stb [%r1], 0\nexit", Reason.NOT_WRITABLE),
    ("lock add [%r1], %r0\nexit", Reason.NOT_WRITABLE),
    ("stb [%r10], 0\nexit", Reason.OUTSIDE),
    ("stdw [%r10-7], 0\nexit", Reason.OUTSIDE),
    ("stb [%r10-257], 0\nexit", Reason.OUTSIDE),
    ("stdw [%r10-16], 0\nlock add [%r10-12], %r1\nexit", Reason.UNALIGNED),
    ("lddw %r1, value:.rodata\nstb [%r1], 1\nexit", Reason.NOT_WRITABLE),
    ("lddw %r1, value:.rodata+8\nldxdw %r0, [%r1+1]\nexit", Reason.OUTSIDE),
    ("lddw %r1, value:array\nldxdw %r0, [%r1+64]\nexit", Reason.OUTSIDE),
    ("lddw %r1, map:m\nldxb %r0, [%r1]\nexit", Reason.OUTSIDE),
    ("lddw %r1, map:m\nmov %r2, %r10\nadd %r2, -3\ncall map_lookup_elem\nexit", Reason.OUTSIDE),
    ("lddw %r1, map:m\nmov %r2, 7\ncall map_lookup_elem\nexit", Reason.OUTSIDE),
    ("lddw %r1, map:m\n" + KEY + "mov %r3, %r10\nadd %r3, -7\ncall map_update_elem\nexit", Reason.OUTSIDE),
    ("lddw %r1, map:sums\n" + KEY + "call map_closed\nldxdw %r0, [%r0]\nexit", Reason.OUTSIDE),
    ("a: ja a", Reason.TOO_LONG),
    ("a: call local a\nexit", Reason.TOO_DEEP),
    ("mov %r0, 0", Reason.NO_INSTRUCTION),
    ("call 999\nexit", Reason.NO_INSTRUCTION),
]


@pytest.mark.parametrize(("text", "reason"), STOPPED)
def test_what_is_stopped_and_why(process: VmProcess, text: str, reason: Reason) -> None:
    p = program(text, *MAPS)
    verdict = trusted(p, call_maps=guessed_call_maps(p.insns), frames={0: 16})
    vm = DeviceVm(process, verdict, 1)
    vm.run(rows([{}] * 3), np.zeros(3, np.uint32), 0)
    assert vm.counters[0, COMPLETE].tolist() == [0, 0, 3, 0, 0]
    slot, why = vm.faults[0]
    assert why == reason
    assert reason == Reason.NO_INSTRUCTION or operation(p.insns[slot])


def test_one_event_is_stopped_and_the_others_go_on(process: VmProcess) -> None:
    text = """
        mov %r6, %r1
        ldxh %r2, [%r6+52]
        jne %r2, 5, fine
        ldxdw %r0, [%r2]
    fine:
        mov %r1, %r6
        call emit
        mov %r0, 0
        exit
    """
    vm = DeviceVm(process, trusted(program(text)), 1)
    by = np.zeros(64, np.uint32)
    vm.run(rows([{"task_class": i % 8} for i in range(64)]), by, 0)
    assert by.tolist() == [int(i % 8 != 5) for i in range(64)]
    assert vm.counters[0, COMPLETE].tolist() == [56, 0, 8, 56, 0]
    assert vm.faults == [(3, Reason.OUTSIDE)]


WRONG = [
    ("map_add", a_map(MapKind.HASH, value=16)),
    ("map_add", a_map(MapKind.HIST, value=7840)),
    ("map_min", a_map(MapKind.ARRAY)),
    ("hist_add", a_map(MapKind.STATS, value=32)),
    ("stats_add", a_map(MapKind.HASH)),
    ("map_closed", a_map(MapKind.HASH)),
    ("map_delete_elem", a_map(MapKind.ARRAY)),
    ("map_add", a_map(MapKind.ARRAY, read_only=True)),
    ("map_update_elem", a_map(MapKind.FEEDBACK, value=16)),
    ("map_lookup_elem", a_map(MapKind.HIST, value=7840)),
]


@pytest.mark.parametrize(("helper", "on"), WRONG)
def test_helpers_on_the_wrong_map_are_refused_with_the_words(process: VmProcess, helper: str, on: Map) -> None:
    p = program(f"lddw %r1, map:m\n{KEY}call {helper}\nexit", on)
    with pytest.raises(Unsound):
        DeviceVm(process, trusted(p, call_maps={4: 0}), 1)


def test_a_program_that_deletes_must_say_that_it_is_serial(process: VmProcess) -> None:
    p = program(f"lddw %r1, map:m\n{KEY}call map_delete_elem\nexit", a_map(MapKind.HASH))
    DeviceVm(process, trusted(p, call_maps={4: 0}), 1)
    with pytest.raises(Unsound):
        DeviceVm(process, trusted(p, call_maps={4: 0}, serial_because=""), 1)
