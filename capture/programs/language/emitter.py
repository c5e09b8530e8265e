"""Slots of eBPF as they are written: labels, the frame, and which registers are free.

Registers: r6 holds the event; r7, r8, r9 keep values while others are computed, as they survive calls; r0 is where
every value appears; r1 to r5 are for one instruction or call at a time. What r7 to r9 do not hold stands in the frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..helpers import HELPER_BY_NAME
from ..isa import ALU64, JMP, LDX, ST, STX, Insn, Pseudo
from ..program import MAX_SLOTS, STACK_BYTES
from .errors import Position, Problem

R0, R1, R2, R3, R4, R5, R6, R10 = 0, 1, 2, 3, 4, 5, 6, 10
_KEEP = (7, 8, 9)
_ALU = {
    n: i
    for i, n in enumerate(("add", "sub", "mul", "div", "or", "and", "lsh", "rsh", "neg", "mod", "xor", "mov", "arsh"))
}
_JUMP = {
    "jeq": 1, "jgt": 2, "jge": 3, "jset": 4, "jne": 5, "jsgt": 6, "jsge": 7, "jlt": 10, "jle": 11,
    "jslt": 12, "jsle": 13,
}  # fmt: skip
_SIZE = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}
_MEM = 0x60


@dataclass(frozen=True)
class Kept:
    """Where a value waits: a register, or a place in the frame."""

    register: int = -1
    place: int = 0


class Label:
    """A place in the code, to which jumps may lead before it is reached. Jumps only go forward."""

    def __init__(self) -> None:
        self.jumps: list[int] = []


class Emitter:
    """Code of one entry. at: the place in the query that what is written now stands for. Raises Problem when full."""

    def __init__(self) -> None:
        self.insns: list[Insn] = []
        self.marks: list[tuple[int, Position]] = []
        self.at = Position(1, 1)
        self._free = list(reversed(_KEEP))
        self._frame = 0

    def mark(self, at: Position) -> None:
        """From here on, code stands for `at`."""
        self.at = at
        if self.marks and self.marks[-1][0] == len(self.insns):
            self.marks.pop()
        if not self.marks or self.marks[-1][1] != at:
            self.marks.append((len(self.insns), at))

    def _put(self, insn: Insn) -> None:
        if len(self.insns) >= MAX_SLOTS:
            raise Problem(
                self.at, f"the code of one hook exceeds {MAX_SLOTS:,} instructions", "make several queries of it"
            )
        self.insns.append(insn)

    # Values

    def move(self, dst: int, value: int) -> None:
        """dst = a signed 64-bit constant."""
        if _short(value):
            self._put(Insn(ALU64 | _ALU["mov"] << 4, dst, imm=value))
        else:
            low, high = value & 0xFFFF_FFFF, value >> 32 & 0xFFFF_FFFF
            self._put(Insn(0x18, dst, imm=_signed32(low)))
            self._put(Insn(0, imm=_signed32(high)))

    def copy(self, dst: int, src: int) -> None:
        if dst != src:
            self._put(Insn(ALU64 | 8 | _ALU["mov"] << 4, dst, src))

    def alu(self, name: str, dst: int, operand: int, *, constant: bool = False) -> None:
        """dst = dst name operand, which is a register, or a constant; sdiv and smod are signed."""
        base, off = {"sdiv": ("div", 1), "smod": ("mod", 1)}.get(name, (name, 0))
        code = ALU64 | _ALU[base] << 4
        if name == "neg":
            self._put(Insn(code, dst))
        elif constant and _short(operand):
            self._put(Insn(code, dst, off=off, imm=operand))
        else:
            if constant:
                self.move(R5, operand)
            self._put(Insn(code | 8, dst, R5 if constant else operand, off))

    def load(self, dst: int, base: int, offset: int, size: int) -> None:
        self._put(Insn(LDX | _MEM | _SIZE[size], dst, base, offset))

    def store(self, base: int, offset: int, size: int, src: int) -> None:
        self._put(Insn(STX | _MEM | _SIZE[size], base, src, offset))

    def store_constant(self, base: int, offset: int, size: int, value: int) -> None:
        self._put(Insn(ST | _MEM | _SIZE[size], base, off=offset, imm=value))

    def map(self, dst: int, index: int) -> None:
        """dst = a map."""
        self._put(Insn(0x18, dst, Pseudo.MAP, imm=index))
        self._put(Insn(0))

    def table(self, dst: int, index: int) -> None:
        """dst = the address of a constant table."""
        self._put(Insn(0x18, dst, Pseudo.VALUE, imm=index))
        self._put(Insn(0))

    def call(self, helper: str) -> None:
        self._put(Insn(JMP | 0x80, imm=HELPER_BY_NAME[helper].id))

    def exit(self) -> None:
        self.move(R0, 0)
        self._put(Insn(JMP | 0x90))

    # Control

    def jump(self, to: Label, name: str = "", dst: int = 0, operand: int = 0, *, constant: bool = False) -> None:
        """To a label further on: always, or if dst name operand."""
        if name and constant and not _short(operand):
            self.move(R5, operand)
            operand, constant = R5, False
        to.jumps.append(len(self.insns))
        if not name:
            self._put(Insn(JMP))
        elif constant:
            self._put(Insn(JMP | _JUMP[name] << 4, dst, imm=operand))
        else:
            self._put(Insn(JMP | 8 | _JUMP[name] << 4, dst, operand))

    def here(self, label: Label) -> None:
        """The label's place. A jump to the very next instruction is left out."""
        for jump in label.jumps:
            self.insns[jump] = self.insns[jump]._replace(off=len(self.insns) - jump - 1)

    # Places

    @contextmanager
    def area(self, size: int) -> Iterator[int]:
        """Offset from r10 of `size` bytes of the frame, aligned to 8."""
        before, self._frame = self._frame, self._frame + -(-size // 8) * 8
        if self._frame > STACK_BYTES:
            raise Problem(
                self.at, f"this needs more than the {STACK_BYTES} bytes of a frame", "use fewer keys or a $local"
            )
        yield -self._frame
        self._frame = before

    @contextmanager
    def kept(self, src: int) -> Iterator[Kept]:
        """The value of a register, kept while others are computed."""
        if self._free:
            register = self._free.pop()
            self.copy(register, src)
            yield Kept(register)
            self._free.append(register)
        else:
            with self.area(8) as place:
                self.store(R10, place, 8, src)
                yield Kept(place=place)

    def recall(self, dst: int, kept: Kept) -> None:
        if kept.register >= 0:
            self.copy(dst, kept.register)
        else:
            self.load(dst, R10, kept.place, 8)


def _short(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
