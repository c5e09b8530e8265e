"""The eBPF instruction set, v1 to v4: eight-byte instructions, and what each encoding means.

Every other room (assembler, verifier, interpreter, lowering, the device VM) asks `operation` what an instruction is,
so that an encoding is understood once. Source: RFC 9669, "BPF Instruction Set Architecture".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ...store.errors import Refused

SLOT = 8
"""Bytes of an instruction slot; a 64-bit immediate load takes two slots."""
REGISTERS = 11
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(REGISTERS)
_CODE = struct.Struct("<BBhi")


class Insn(NamedTuple):
    """One slot. `off` and `imm` are signed. The second slot of a 64-bit load has op 0 and the high half in imm."""

    op: int
    dst: int = 0
    src: int = 0
    off: int = 0
    imm: int = 0


class Kind(Enum):
    """What an instruction does, as far as control and memory go."""

    ALU = auto()
    """dst = dst name operand; `mov`, `movsx` and `neg` have one operand"""
    SWAP = auto()
    """dst = le, be or bswap of its low `bits` bits, the rest zero"""
    WIDE = auto()
    """dst = 64-bit immediate, or a map, or the address of a map's value: see Pseudo"""
    LOAD = auto()
    """dst = zero-extended *(size)(src + off)"""
    LOADSX = auto()
    """dst = sign-extended *(size)(src + off)"""
    STORE = auto()
    """*(size)(dst + off) = operand"""
    ATOMIC = auto()
    """*(size)(dst + off) name= src, with or without the old value in src; cmpxchg compares with and returns in r0"""
    JUMP = auto()
    """to pc + 1 + off if dst name operand"""
    GOTO = auto()
    """to pc + 1 + target"""
    CALL = auto()
    """a helper by id, or a function of the program at pc + 1 + imm (src = 1)"""
    EXIT = auto()


class Pseudo:
    """`src` of a WIDE instruction, and of a CALL."""

    IMMEDIATE = 0
    MAP = 1
    """imm: index in Program.maps"""
    VALUE = 2
    """imm: index in Program.maps; imm of the second slot: offset in its only value"""
    LOCAL = 1
    """CALL of a function of the program"""


@dataclass(frozen=True)
class Operation:
    """What an instruction means. bits: width of the arithmetic or comparison; size: bytes of the memory access."""

    kind: Kind
    name: str
    bits: int = 64
    register: bool = False
    """the operand is src, not imm"""
    size: int = 0
    fetch: bool = False
    slots: int = 1


_ALU = ("add", "sub", "mul", "div", "or", "and", "lsh", "rsh", "neg", "mod", "xor", "mov", "arsh")
_JUMP = {1: "jeq", 2: "jgt", 3: "jge", 4: "jset", 5: "jne", 6: "jsgt", 7: "jsge"}
_JUMP |= {10: "jlt", 11: "jle", 12: "jslt", 13: "jsle"}
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_ATOMIC = {0x00: "add", 0x40: "or", 0x50: "and", 0xA0: "xor", 0xE1: "xchg", 0xF1: "cmpxchg"}
LD, LDX, ST, STX, ALU32, JMP, JMP32, ALU64 = range(8)


def operation(insn: Insn) -> Operation | None:
    """What `insn` means; None if no instruction is encoded so: an unknown code, or a reserved field that is not 0."""
    if not (0 <= insn.dst < REGISTERS and 0 <= insn.src < REGISTERS):
        return None
    family = insn.op & 7
    if family in (ALU32, ALU64):
        return _alu(insn, 64 if family == ALU64 else 32)
    if family in (JMP, JMP32):
        return _jump(insn, 64 if family == JMP else 32)
    return _memory(insn, family)


def _alu(insn: Insn, bits: int) -> Operation | None:
    code, register = insn.op >> 4, bool(insn.op & 8)
    if code == 13:
        if insn.src or insn.off or insn.imm not in (16, 32, 64):
            return None
        name = "bswap" if bits == 64 else "be" if register else "le"
        return None if bits == 64 and register else Operation(Kind.SWAP, name, insn.imm)
    if code > 12 or (register and insn.imm) or (not register and insn.src):
        return None
    name = _ALU[code]
    if name == "neg":
        return None if register or insn.off or insn.imm else Operation(Kind.ALU, name, bits)
    if insn.off:
        if name in ("div", "mod") and insn.off == 1:
            name = "s" + name
        elif name == "mov" and register and insn.off in ((8, 16) if bits == 32 else (8, 16, 32)):
            return Operation(Kind.ALU, "movsx", bits, register=True, size=insn.off // 8)
        else:
            return None
    return Operation(Kind.ALU, name, bits, register)


def _jump(insn: Insn, bits: int) -> Operation | None:
    code, register = insn.op >> 4, bool(insn.op & 8)
    if code == 0:
        if register or insn.dst or insn.src or (insn.imm if bits == 64 else insn.off):
            return None
        return Operation(Kind.GOTO, "ja", bits)
    if code == 8:
        if bits == 32 or register or insn.dst or insn.off or insn.src not in (0, Pseudo.LOCAL):
            return None
        return Operation(Kind.CALL, "call", register=insn.src == Pseudo.LOCAL)
    if code == 9:
        return None if bits == 32 or any(insn[1:]) or register else Operation(Kind.EXIT, "exit")
    if code not in _JUMP or (register and insn.imm) or (not register and insn.src):
        return None
    return Operation(Kind.JUMP, _JUMP[code], bits, register)


def _memory(insn: Insn, family: int) -> Operation | None:
    size, mode = _SIZES[insn.op & 0x18], insn.op >> 5
    if family == LD:
        if insn.op != 0x18 or insn.off or insn.src > Pseudo.VALUE:
            return None
        return Operation(Kind.WIDE, "lddw", slots=2)
    if mode == 3 and family == LDX:
        return None if insn.imm else Operation(Kind.LOAD, "ldx", size=size)
    if mode == 4 and family == LDX:
        return None if insn.imm or size == 8 else Operation(Kind.LOADSX, "ldxs", size=size)
    if mode == 3 and family == ST:
        return None if insn.src else Operation(Kind.STORE, "st", size=size)
    if mode == 3 and family == STX:
        return None if insn.imm else Operation(Kind.STORE, "stx", register=True, size=size)
    if mode == 6 and family == STX and size in (4, 8):
        fetch = bool(insn.imm & 1)
        name = _ATOMIC.get(insn.imm if insn.imm in (0xE1, 0xF1) else insn.imm & ~1)
        return Operation(Kind.ATOMIC, name, size * 8, register=True, size=size, fetch=fetch) if name else None
    return None


def target(insn: Insn) -> int:
    """How far a GOTO or JUMP goes from the slot after it."""
    return insn.imm if insn.op == JMP32 else insn.off


def wide(first: Insn, second: Insn) -> int:
    """The unsigned 64-bit immediate of a WIDE instruction."""
    return (first.imm & 0xFFFF_FFFF) | (second.imm & 0xFFFF_FFFF) << 32


def encode(insns: Iterable[Insn]) -> bytes:
    """Instructions as they stand in an object, little-endian."""
    return b"".join(_CODE.pack(i.op, i.src << 4 | i.dst, i.off, i.imm) for i in insns)


def decode(code: bytes) -> tuple[Insn, ...]:
    """Slots of `code`. Says nothing of their meaning. Raises Refused when it is no whole number of slots."""
    if len(code) % SLOT:
        raise Refused("program", f"its code has {len(code)} bytes, no multiple of {SLOT}", "compile it again")
    return tuple(Insn(op, regs & 15, regs >> 4, off, imm) for op, regs, off, imm in _CODE.iter_unpack(code))
