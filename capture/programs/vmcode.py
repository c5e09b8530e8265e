"""A verified program as the device VM takes it: 16-byte instructions, maps with their places, one checksum.

`render` is deterministic: the same verdict gives the same words. The layout is declared in capture/device/vm_code.cuh
and vm_memory.cuh, whose constants a test compares with these; the device checks the words again before it uses them.
What no verified program has (an unknown code, a jump to nowhere, a helper without a map) becomes an instruction that
stops the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from ...store.errors import Refused
from .helpers import HELPER_BY_ID, Arg
from .isa import Insn, Kind, Operation, Pseudo, operation, target, wide
from .maps import FIXED_VALUE_BYTES, Map, MapKind
from .program import STACK_BYTES
from .verdict import Access, Region, Verdict

U64 = NDArray[np.uint64]
MAGIC = 0x4D56_534D
VERSION = 1
MAX_MAPS = 64
MAX_COST = 1 << 15
HOOK_ENTRIES = 16
NO_ENTRY = 0xFFFF
PART_WORDS = 16 + HOOK_ENTRIES * 5
MAP_WORDS = 4

HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u4"),
        ("checksum", "<u8"),
        ("words", "<u4"),
        ("slots", "<u4"),
        ("maps", "<u4"),
        ("flags", "<u4"),
        ("shared_words", "<u8"),
        ("worker_words", "<u8"),
        ("most_cost", "<u4"),
        ("reserved", "<u4", (3,)),
        ("cost", "<u4", (HOOK_ENTRIES,)),
        ("entry", "<u2", (HOOK_ENTRIES,)),
    ]
)
MAP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("key_size", "<u2"),
        ("key_words", "<u4"),
        ("value_size", "<u4"),
        ("value_words", "<u4"),
        ("max_entries", "<u4"),
        ("slots", "<u4"),
        ("offset", "<u8"),
        ("bank_words", "<u4"),
        ("initial", "<u4"),
        ("banks", "<u4"),
        ("reserved", "<u4", (5,)),
    ]
)
INSN = np.dtype([("op", "u1"), ("dst", "u1"), ("src", "u1"), ("mode", "u1"), ("at", "<u4"), ("imm", "<u8")])

OPS = (
    *("stop", "add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "neg"),
    *("mov", "wide", "sign", "swap", "jeq", "jne", "jgt", "jge", "jlt", "jle", "jset", "jsgt", "jsge", "jslt", "jsle"),
    *("column", "load", "store", "atomic", "goto", "call", "exit", "lookup", "update", "delete", "last", "upsert"),
    *("time", "emit"),
)
"""VmOp, in order"""
_OP = {name: i for i, name in enumerate(OPS)}
_ATOMIC = {name: i for i, name in enumerate(("add", "or", "and", "xor", "xchg", "cmpxchg"))}
_UPSERT = {name: i for i, name in enumerate(("map_add", "map_min", "map_max", "hist_add", "stats_add"))}
_KEYED = {
    "map_lookup_elem": "lookup",
    "map_update_elem": "update",
    "map_delete_elem": "delete",
    "map_closed": "last",
    **dict.fromkeys(_UPSERT, "upsert"),
}
_KIND = {k: i for i, k in enumerate((MapKind.HASH, MapKind.ARRAY, MapKind.HIST, MapKind.STATS, MapKind.FEEDBACK))}
_SIGNED = frozenset(("sdiv", "smod", "arsh", "jsgt", "jsge", "jslt", "jsle"))
_LIVE = 3
_MAP = 5
"""What a map's own address is tagged with: no access goes there."""


class Mode(IntFlag):
    """`mode` of an instruction, beside the bytes of an access."""

    NARROW = 16
    SIGNED = 32
    IMMEDIATE = 64
    FETCH = 128


class MapBit(IntFlag):
    """`flags` of a map."""

    SHARED = 1
    AGGREGATE = 2
    READ_ONLY = 4


class ProgramBit(IntFlag):
    """`flags` of the header."""

    SERIAL = 1
    EMITS = 2


class Reason(IntEnum):
    """Why the device stopped an event, in PART_FAULT."""

    NO_INSTRUCTION = 1
    OUTSIDE = 2
    NOT_WRITABLE = 3
    UNALIGNED = 4
    TOO_DEEP = 5
    TOO_LONG = 6


@dataclass(frozen=True)
class Arena:
    """Words of 8 bytes that a program's maps and counters take: shared by each rank, and of each worker."""

    shared: int
    worker: int

    def bytes(self, workers: int, ranks: int = 1) -> int:
        """What an arena for so many workers of so many ranks takes."""
        return 8 * (ranks * self.shared + workers * self.worker)


def arena(program_maps: tuple[Map, ...]) -> Arena:
    """The arena that maps take."""
    _, shared, worker = _place(program_maps)
    return Arena(shared, worker)


def render(verdict: Verdict) -> bytes:
    """The words. Raises Refused for what the VM has no room for."""
    program = verdict.program
    what, todo = f"program {program.name}", "make it smaller"
    if len(program.maps) > MAX_MAPS:
        raise Refused(what, f"it has {len(program.maps)} maps and the device takes {MAX_MAPS}", todo)
    most = max(verdict.cost.values(), default=0)
    if most > MAX_COST:
        raise Refused(what, f"an event may take {most} instructions and the device allows {MAX_COST}", todo)
    if any(m.initial and m.aggregate for m in program.maps):
        raise Refused(what, "a global section is an aggregation", "let it be state")
    maps, shared, worker = _place(program.maps)
    code = _code(verdict)
    initial_at = (HEADER.itemsize + maps.nbytes + code.nbytes) // 8
    sections = b""
    for at, m in enumerate(program.maps):
        if m.initial:
            maps[at]["initial"] = initial_at + len(sections) // 8
            sections += m.initial + bytes(-len(m.initial) % 8)
    header = np.zeros(1, HEADER)
    h = header[0]
    h["magic"], h["version"], h["slots"], h["maps"] = MAGIC, VERSION, len(code), len(maps)
    h["flags"] = ProgramBit.SERIAL * (not verdict.simt) | ProgramBit.EMITS * verdict.emits
    h["shared_words"], h["worker_words"], h["most_cost"] = shared, worker, most
    h["entry"] = NO_ENTRY
    for entry in program.entries:
        for hook in entry.hooks:
            h["entry"][hook], h["cost"][hook] = entry.pc, verdict.cost[hook]
    h["words"] = initial_at + len(sections) // 8
    out = header.tobytes() + maps.tobytes() + code.tobytes() + sections
    words = np.frombuffer(out, np.uint64)
    header[0]["checksum"] = checksum(words)
    return header.tobytes() + out[HEADER.itemsize :]


def checksum(words: U64) -> int:
    """What the header must say of the words after it."""
    rest = words[2:] + np.arange(2, len(words), dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    k = np.uint64(0xD6E8_FEB8_6659_FD93)
    rest = (rest ^ rest >> np.uint64(32)) * k
    rest = (rest ^ rest >> np.uint64(29)) * k
    return int(rest.sum(dtype=np.uint64))


def _place(program_maps: tuple[Map, ...]) -> tuple[NDArray[np.void], int, int]:
    """Maps as the device has them, and the words of the shared part and of each worker's."""
    out = np.zeros(len(program_maps), MAP)
    words = {True: PART_WORDS, False: PART_WORDS}
    for m, d in zip(program_maps, out, strict=True):
        value_size = FIXED_VALUE_BYTES.get(m.kind, m.value_size)
        aggregate = m.aggregate or m.kind in (MapKind.HIST, MapKind.STATS)
        read_only = m.read_only or m.kind == MapKind.FEEDBACK
        # Feedback cells are each worker's own, so that a cell's two words never change while an event is looked at.
        shared = m.kind != MapKind.FEEDBACK and (m.shared or (m.read_only and not aggregate))
        key_words, value_words = 0 if m.indexed else -(-m.key_size // 8), -(-value_size // 8)
        # Room for stamps, or an index that is at most half full.
        stamps = m.max_entries if aggregate else 0
        slots = stamps if m.indexed else 1 << max(2 * m.max_entries - 1, 1).bit_length()
        d["kind"] = _KIND[m.kind]
        d["flags"] = MapBit.SHARED * shared | MapBit.AGGREGATE * aggregate | MapBit.READ_ONLY * read_only
        d["key_size"], d["key_words"] = m.key_size, key_words
        d["value_size"], d["value_words"] = value_size, value_words
        d["max_entries"], d["slots"], d["banks"] = m.max_entries, slots, 2 if aggregate else 1
        d["bank_words"] = slots + m.max_entries * (key_words + value_words)
        d["offset"] = words[shared]
        words[shared] += MAP_WORDS + int(d["banks"]) * int(d["bank_words"])
    return out, words[True], words[False]


def _code(verdict: Verdict) -> NDArray[np.void]:
    insns = verdict.program.insns
    out = np.zeros(len(insns) + 1, INSN)
    for pc in sorted(verdict.reachable):
        op = operation(insns[pc])
        if op is not None and pc + op.slots <= len(insns):
            out[pc] = _insn(verdict, pc, insns, op)
    return out


def _insn(verdict: Verdict, pc: int, insns: tuple[Insn, ...], op: Operation) -> tuple[int, int, int, int, int, int]:
    insn = insns[pc]
    mode = (0 if op.register else Mode.IMMEDIATE) | (Mode.SIGNED if op.name in _SIGNED else 0)
    narrow = Mode.NARROW if op.bits == 32 else 0
    imm = insn.imm & 0xFFFF_FFFF_FFFF_FFFF

    def made(name: str, mode: int = 0, at: int = 0, imm: int = 0) -> tuple[int, int, int, int, int, int]:
        return _OP[name], insn.dst, insn.src, mode, at & 0xFFFF_FFFF, imm

    match op.kind:
        case Kind.ALU if op.name == "movsx":
            return made("sign", narrow, 8 * op.size)
        case Kind.ALU:
            return made(op.name, mode | narrow, 0, imm)
        case Kind.SWAP if op.name == "le":
            return made("and", Mode.IMMEDIATE, 0, (1 << op.bits) - 1)
        case Kind.SWAP:
            return made("swap", 0, op.bits // 8)
        case Kind.WIDE:
            # src says what the immediate is, and is no register.
            return _OP["wide"], insn.dst, 0, Mode.IMMEDIATE, 0, _wide(insn, insns[pc + 1])
        case Kind.LOAD | Kind.LOADSX:
            sign = Mode.SIGNED if op.kind == Kind.LOADSX else 0
            access = verdict.access.get(pc, Access(Region.VALUE))
            if access.region == Region.CONTEXT:
                return made("column", op.size | sign, access.offset)
            return made("load", op.size | sign, insn.off)
        case Kind.STORE:
            return made("store", op.size | mode, insn.off, imm)
        case Kind.ATOMIC:
            return made("atomic", op.size | (Mode.FETCH if op.fetch else 0), insn.off, _ATOMIC[op.name])
        case Kind.JUMP:
            return made(op.name, mode | narrow, _slot(insns, pc + 1 + target(insn)), imm)
        case Kind.GOTO:
            return made("goto", 0, _slot(insns, pc + 1 + target(insn)))
        case Kind.CALL if op.register:
            return _OP["call"], 0, 0, 0, _slot(insns, pc + 1 + insn.imm), _frame(verdict, pc)
        case Kind.CALL:
            return _helper(verdict, pc, insn.imm)
        case Kind.EXIT:
            return made("exit")


def _slot(insns: tuple[Insn, ...], pc: int) -> int:
    """Where a jump goes: the slot after the last, which stops, if it is to nowhere."""
    return pc if 0 <= pc < len(insns) else len(insns)


def _wide(first: Insn, second: Insn) -> int:
    if first.src == Pseudo.MAP:
        return pointer(_MAP, first.imm)
    if first.src == Pseudo.VALUE:
        return pointer(_LIVE, first.imm, second.imm)
    return wide(first, second)


def pointer(tag: int, map_index: int = 0, offset: int = 0) -> int:
    """What stands for an address in a register: see vm_memory.cuh."""
    return (tag << 56 | map_index << 48) + offset & 0xFFFF_FFFF_FFFF_FFFF


def _frame(verdict: Verdict, pc: int) -> int:
    """Bytes of the stack frame of the function that slot `pc` is in."""
    function = max((start for start in verdict.frames if start <= pc), default=None)
    return STACK_BYTES if function is None else verdict.frames[function]


def _helper(verdict: Verdict, pc: int, number: int) -> tuple[int, int, int, int, int, int]:
    helper = HELPER_BY_ID.get(number)
    if helper is None or (Arg.MAP in helper.args and pc not in verdict.call_maps):
        return _OP["stop"], 0, 0, 0, 0, 0
    if helper.name not in _KEYED:
        return _OP["emit" if helper.name == "emit" else "time"], 0, 0, 0, 0, 0
    return _OP[_KEYED[helper.name]], 0, 0, 0, _UPSERT.get(helper.name, 0), verdict.call_maps[pc]
