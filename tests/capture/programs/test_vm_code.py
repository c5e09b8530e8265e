"""The words of a program: as the device declares them, the same each time, and what they cannot hold is refused."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from hand_made import COMPLETE, a_map, program, trusted
from hypothesis import given
from hypothesis import strategies as st
from vm_generator import draw
from vm_process import DEVICE

from megascope.capture.programs import histogram, vm_exports, vmcode
from megascope.capture.programs.execution import COUNTS, Count
from megascope.capture.programs.helpers import HELPER_BY_ID
from megascope.capture.programs.maps import MAX_ENTRIES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MapKind
from megascope.capture.programs.program import MAX_FRAMES, MAX_SLOTS, STACK_BYTES
from megascope.capture.programs.verdict import Access, Region
from megascope.capture.programs.verifier import explore as verifier_explore
from megascope.store.errors import Refused

HEADERS = {p.name: p.read_text() for p in DEVICE.glob("vm*.cuh")}
ALL = "\n".join(HEADERS.values())


def members(enum: str) -> dict[str, int]:
    """Names and values of an enum of the headers."""
    body = re.search(rf"enum {enum} : u\d+ {{(.*?)}};", ALL, re.S)
    assert body, enum
    out, value = {}, 0
    for part in re.sub(r"//[^\n]*", "", body[1]).split(","):
        if part.strip():
            name, _, given_value = (x.strip() for x in part.partition("="))
            value = eval(given_value, {"VM_HOOKS": vmcode.HOOK_ENTRIES}) if given_value else value
            out[name] = value
            value += 1
    return out


def constant(name: str) -> int:
    found = re.search(rf"constexpr u\d+ {name} = ([^;]*);", ALL)
    assert found, name
    known = {"VM_HIST_HEAD": histogram.HEAD, "VM_HIST_WORDS": histogram.WORDS}
    return int(eval(found[1], known))


def fields(struct: str) -> list[tuple[str, int, int]]:
    """(name, bytes of one, how many) of the fields of a struct of the headers."""
    body = re.search(rf"struct (?:alignas\(16\) )?{struct} {{\n(.*?)\n\n?(?:  MS_DEVICE|}};)", ALL, re.S)
    assert body, struct
    out = []
    for line in re.sub(r"//[^\n]*", "", body[1]).split(";"):
        if line.strip():
            size, names = re.fullmatch(r"u(\d+) (.*)", line.strip(), re.S).groups()  # type: ignore[union-attr]
            for name in names.split(","):
                array = re.fullmatch(r"(\w+)\[(\w+)\]", name.strip())
                n = (int(array[2]) if array[2].isdigit() else constant(array[2])) if array else 1
                out.append((array[1] if array else name.strip(), int(size) // 8, n))
    return out


@pytest.mark.parametrize(
    ("struct", "dtype"), [("VmHeader", vmcode.HEADER), ("VmMap", vmcode.MAP), ("VmInsn", vmcode.INSN)]
)
def test_records_are_as_the_device_declares_them(struct: str, dtype: np.dtype[np.void]) -> None:
    at = 0
    assert dtype.fields is not None
    assert [name for name, _, _ in fields(struct)] == list(dtype.names or ())
    for name, size, n in fields(struct):
        at = -(-at // size) * size
        kind, offset = dtype.fields[name][:2]
        assert (offset, kind.itemsize, kind.base.itemsize) == (at, size * n, size), name
        at += size * n
    assert -(-at // 8) * 8 == dtype.itemsize


def test_names_are_as_the_device_declares_them() -> None:
    ops = members("VmOp")
    assert [name.removeprefix("VM_").lower() for name in ops][:-1] == list(vmcode.OPS)
    assert list(ops.values()) == list(range(len(vmcode.OPS) + 1))
    modes = members("VmMode")
    assert modes.pop("VM_SIZE") == 15
    assert {n.removeprefix("VM_"): v for n, v in modes.items()} == {m.name: m.value for m in vmcode.Mode}
    assert {n.removeprefix("VM_"): v for n, v in members("VmMapFlag").items()} == {
        m.name: m.value for m in vmcode.MapBit
    }
    flags = {n.removeprefix("VM_"): v for n, v in members("VmProgramFlag").items()}
    assert flags == {m.name: m.value for m in vmcode.ProgramBit}
    reasons = members("VmReason")
    assert reasons.pop("VM_FINE") == 0
    assert {n.removeprefix("VM_"): v for n, v in reasons.items()} == {r.name: r.value for r in vmcode.Reason}
    kinds = [n.removeprefix("VM_") for n in members("VmKind")]
    assert kinds == [
        *(k.name for k in (MapKind.HASH, MapKind.ARRAY, MapKind.HIST, MapKind.STATS, MapKind.FEEDBACK)),
        "KINDS",
    ]
    assert [n.removeprefix("VM_") for n in members("VmCount")] == [*(c.name for c in Count), "COUNTS"]
    assert members("VmRecord") == {
        "RECORD_ENTRY": vm_exports.ENTRY,
        "RECORD_END": vm_exports.END,
    }


def test_sizes_are_as_the_device_declares_them() -> None:
    assert constant("VM_MAGIC") == vmcode.MAGIC
    assert constant("VM_VERSION") == vmcode.VERSION
    assert constant("VM_HOOKS") == vmcode.HOOK_ENTRIES
    assert constant("VM_FRAMES") == MAX_FRAMES
    assert constant("VM_STACK_BYTES") == STACK_BYTES
    assert constant("VM_MAX_SLOTS") == MAX_SLOTS + 1
    assert constant("VM_MAX_MAPS") == vmcode.MAX_MAPS
    assert constant("VM_MAX_ENTRIES") == MAX_ENTRIES < (1 << 21) - 1
    assert constant("VM_MAX_COST") == vmcode.MAX_COST == verifier_explore.MAX_COST
    assert constant("VM_HIST_WORDS") == histogram.WORDS
    assert constant("VM_END_WORDS") == vm_exports.END_WORDS
    assert constant("VM_EXPORT_WORDS") == vm_exports.ROOM >= 1 + MAX_KEY_BYTES // 8 + MAX_VALUE_BYTES // 8
    part = members("PartWord")
    assert part["PART_WORDS"] == vmcode.PART_WORDS == part["PART_COUNTERS"] + vmcode.HOOK_ENTRIES * COUNTS
    assert members("MapWord")["MAP_WORDS"] == vmcode.MAP_WORDS
    assert f"m.value_size > {MAX_VALUE_BYTES}" in HEADERS["vm_check.cuh"]
    assert f"m.key_size > {MAX_KEY_BYTES}" in HEADERS["vm_check.cuh"]


def test_headers_are_short() -> None:
    assert {name: n for name, text in HEADERS.items() if (n := text.count("\n")) > 300} == {}
    assert all(len(line) <= 120 for text in HEADERS.values() for line in text.split("\n"))


def test_instructions_and_places_of_a_small_program() -> None:
    text = """
        ldxw %r3, [%r1+52]
        lddw %r2, 0x1122334455667788
        jsgt32 %r3, -2, +1
        stxw [%r10-4], %r3
        lddw %r1, map:sums
        call map_add
        exit
    """
    maps = (
        a_map(MapKind.HASH, "sums", key=12, entries=5, aggregate=True),
        a_map(MapKind.ARRAY, ".rodata", value=12, entries=1, read_only=True, initial=b"twelve bytes"),
        a_map(MapKind.FEEDBACK, "fed", value=16, entries=3),
    )
    access = {0: Access(Region.CONTEXT, offset=52, size=4)}
    verdict = trusted(program(text, *maps), cost=70, access=access, call_maps={7: 0}, serial_because="")
    words = vmcode.render(verdict)
    assert words == vmcode.render(verdict)
    header = np.frombuffer(words, vmcode.HEADER, 1)[0]
    assert header["flags"] == vmcode.ProgramBit.EMITS
    assert (header["slots"], header["maps"], header["words"]) == (10, 3, len(words) // 8)
    assert (header["entry"][COMPLETE], header["cost"][COMPLETE], header["most_cost"]) == (0, 70, 70)
    assert (np.delete(header["entry"], COMPLETE) == vmcode.NO_ENTRY).all()
    code = np.frombuffer(words, vmcode.INSN, 10, vmcode.HEADER.itemsize + 3 * vmcode.MAP.itemsize)
    op, wide = [vmcode.OPS[i["op"]] for i in code], 0x1122_3344_5566_7788
    assert op == ["column", "wide", "stop", "jsgt", "store", "wide", "stop", "upsert", "exit", "stop"]
    assert (code[0]["at"], code[0]["mode"], code[1]["imm"]) == (52, 4, wide)
    narrow = vmcode.Mode.NARROW | vmcode.Mode.SIGNED | vmcode.Mode.IMMEDIATE
    assert (code[3]["at"], code[3]["imm"], code[3]["mode"]) == (5, (1 << 64) - 2, narrow)
    assert (code[4]["at"], code[4]["mode"]) == ((1 << 32) - 4, 4)
    placed = np.frombuffer(words, vmcode.MAP, 3, vmcode.HEADER.itemsize)
    assert placed["slots"].tolist() == [16, 0, 0]
    assert placed["bank_words"].tolist() == [16 + 5 * 3, 2, 6]
    assert placed["offset"].tolist() == [vmcode.PART_WORDS, vmcode.PART_WORDS, vmcode.PART_WORDS + 4 + 2 * 31]
    assert words[8 * int(placed[1]["initial"]) :] == b"twelve bytes" + bytes(4)
    arena = vmcode.arena(maps)
    assert (arena.shared, arena.worker) == (vmcode.PART_WORDS + 4 + 2, vmcode.PART_WORDS + 4 + 2 * 31 + 4 + 6)
    assert arena.bytes(3) == 8 * (arena.shared + 3 * arena.worker)


def test_the_same_verdict_gives_the_same_words() -> None:
    for seed in range(20):
        assert vmcode.render(draw(seed, seed % 2 == 1)) == vmcode.render(draw(seed, seed % 2 == 1))


def test_what_has_no_room_is_refused() -> None:
    many = program("mov %r0, 0\nexit", *(a_map(MapKind.ARRAY, f"m{i}") for i in range(vmcode.MAX_MAPS + 1)))
    with pytest.raises(Refused, match="has 65 maps and the device takes 64"):
        vmcode.render(trusted(many))
    with pytest.raises(Refused, match="may take 32769 instructions"):
        vmcode.render(trusted(program("mov %r0, 0\nexit"), cost=vmcode.MAX_COST + 1))
    globals_ = a_map(MapKind.ARRAY, ".data", entries=1, initial=bytes(8), aggregate=True)
    with pytest.raises(Refused, match="a global section is an aggregation"):
        vmcode.render(trusted(program("mov %r0, 0\nexit", globals_)))


def test_every_helper_has_an_operation() -> None:
    for helper in HELPER_BY_ID.values():
        p = program(f"call {helper.name}\nexit", a_map(MapKind.HASH))
        words = vmcode.render(trusted(p, call_maps={0: 0}))
        code = np.frombuffer(words, vmcode.INSN, 3, vmcode.HEADER.itemsize + vmcode.MAP.itemsize)
        assert vmcode.OPS[code[0]["op"]] != "stop", helper.name


EXPORTING = program(
    "exit",
    a_map(MapKind.HASH, key=12, aggregate=True),
    a_map(MapKind.HIST, "h", value=7840),
    a_map(MapKind.ARRAY, "a", aggregate=True),
)
END = [vm_exports.END | 3 << 32, 7, 1]


def test_records_are_read_back() -> None:
    hist = [vm_exports.ENTRY | 1 << 8 | 8 << 32, 5, 3, 40, 4, 20, 4 << 48 | 1, 20 << 48 | 2]
    words = [*END, *hist, vm_exports.END | 1 << 8 | 3 << 32, 0, 2]
    empty, one = vm_exports.read(EXPORTING, 3, np.array(words, np.uint64))
    assert (empty.export.refused, len(empty.export.keys), empty.epochs) == (7, 0, 1)
    assert (one.export.map, one.export.worker, one.epochs) == (1, 3, 2)
    want = np.zeros(histogram.WORDS, np.uint64)
    want[:4], want[8], want[24] = (3, 40, 4, 20), 1, 2
    assert one.export.values.view(np.uint64)[0].tolist() == want.tolist()
    assert one.export.keys.tolist() == [[5, 0, 0, 0]]


@pytest.mark.parametrize(
    "words",
    [
        [0],
        [vm_exports.END | 3 << 32, 0],
        [vm_exports.END | 9 << 8 | 3 << 32, 0, 0],
        [vm_exports.ENTRY | 4 << 32, 1, 2, 3],
        [vm_exports.ENTRY | 3 << 32, 1, 2, *END],
        [vm_exports.ENTRY | 1 << 8 | 7 << 32, 5, 1, 1, 1, 1, 976 << 48 | 1],
        [vm_exports.ENTRY | 4 << 32, 1, 2, 3, vm_exports.END | 1 << 8 | 3 << 32, 0, 1],
        [vm_exports.ENTRY | 4 << 32, 1, 2, 3, vm_exports.ENTRY],
    ],
)
def test_other_words_are_refused(words: list[int]) -> None:
    with pytest.raises(Refused, match="exports of program p"):
        list(vm_exports.read(EXPORTING, 0, np.array(words, np.uint64)))


@given(st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from([*END, 4 << 32 | 1])), max_size=20))
def test_any_words_are_read_or_refused(words: list[int]) -> None:
    try:
        for closed in vm_exports.read(EXPORTING, 0, np.array(words, np.uint64)):
            assert len(closed.export.keys) == len(closed.export.values)
    except Refused:
        pass


def test_a_checksum_sees_any_single_change() -> None:
    words = np.frombuffer(vmcode.render(draw(1, True)), np.uint64).copy()
    right, r = vmcode.checksum(words), Random(1)
    for _ in range(500):
        at, bit = r.randrange(2, len(words)), np.uint64(1 << r.randrange(64))
        words[at] ^= bit
        assert vmcode.checksum(words) != right
        words[at] ^= bit
