"""Instructions to text that assembles back to the same slots: names for targets, functions, helpers and maps.

What is no instruction (it may be a refused program that is shown) is written as `.slot`, its 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .assembler import NAME
from .helpers import HELPER_BY_ID
from .isa import Insn, Kind, Operation, Pseudo, encode, operation, target, wide
from .mnemonics import mnemonic
from .program import Program


@dataclass(frozen=True)
class _Names:
    """labels: by slot; maps: by index, where the name tells a map from all others."""

    labels: dict[int, str]
    maps: dict[int, str]


def disassemble(code: Program | Sequence[Insn], *, source: bool = False, numbers: bool = False) -> list[str]:
    """Lines of assembly, without line ends.

    source: the program's source lines before their instructions, as comments. numbers: each instruction's slot before
    it, which the assembler checks. The maps' names are those of the program: `{m.name: i for i, m in enumerate(maps)}`.
    """
    program = code if isinstance(code, Program) else None
    insns = code.insns if isinstance(code, Program) else tuple(code)
    found = dict(_instructions(insns))
    names = _Names(_labels(insns, found, program), _map_names(program))
    lines = _source(program) if program and source else {}
    width = max(len(str(len(insns))), 3)
    out: list[str] = []
    for pc, op in found.items():
        out += lines.get(pc, ())
        if pc in names.labels:
            out.append(f"{names.labels[pc]}:")
        text = _text(pc, insns, op, names) if op else f".slot 0x{_slot(insns[pc]):016x}"
        out.append(f"{pc:>{width}}: {text}" if numbers else f"    {text}")
    if len(insns) in names.labels:
        out.append(f"{names.labels[len(insns)]}:")
    return out


def _instructions(insns: Sequence[Insn]) -> Iterator[tuple[int, Operation | None]]:
    """Slot and meaning of each; None where text could not say all of its bits."""
    pc = 0
    while pc < len(insns):
        op = operation(insns[pc])
        if op and op.slots == 2 and not _whole(insns, pc):
            op = None
        yield pc, op
        pc += op.slots if op else 1


def _whole(insns: Sequence[Insn], pc: int) -> bool:
    """The second slot of a 64-bit load is there, and has nothing but an immediate; a map's has nothing at all."""
    if pc + 1 >= len(insns) or any(insns[pc + 1][:4]):
        return False
    first, second = insns[pc : pc + 2]
    return first.src == Pseudo.IMMEDIATE or (first.imm >= 0 and (first.src == Pseudo.VALUE or second.imm == 0))


def _slot(insn: Insn) -> int:
    return int.from_bytes(encode([insn]), "little")


def _labels(insns: Sequence[Insn], found: dict[int, Operation | None], program: Program | None) -> dict[int, str]:
    """Names of functions, and of whatever slot is a target; `L` and the slot where it has no other."""
    out: dict[int, str] = {}
    taken: set[str] = set()
    for f in program.functions if program else ():
        if f.pc in found and f.pc not in out and f.name not in taken and re.fullmatch(NAME, f.name):
            out[f.pc] = f.name
            taken.add(f.name)
    targets = {pc + 1 + _distance(insns[pc], op) for pc, op in found.items() if op and _aims(op)}
    for pc in sorted(t for t in targets if t in found or t == len(insns)):
        name = f"L{pc}"
        while name in taken:
            name += "_"
        taken.add(out.setdefault(pc, name))
    return out


def _map_names(program: Program | None) -> dict[int, str]:
    names = [m.name for m in program.maps] if program else []
    return {i: n for i, n in enumerate(names) if names.count(n) == 1 and re.fullmatch(NAME, n)}


def _aims(op: Operation) -> bool:
    return op.kind in (Kind.JUMP, Kind.GOTO) or (op.kind == Kind.CALL and op.register)


def _distance(insn: Insn, op: Operation) -> int:
    return insn.imm if op.kind == Kind.CALL else target(insn)


def _source(program: Program) -> dict[int, list[str]]:
    out: dict[int, list[str]] = {}
    for line in program.lines:
        where = f"{line.file}:{line.line}: " if line.line else ""
        text = "".join(c if c.isprintable() else " " for c in f"{where}{line.text.strip()}")
        out.setdefault(line.pc, []).append(f"; {text}")
    return out


def _text(pc: int, insns: Sequence[Insn], op: Operation, names: _Names) -> str:
    insn = insns[pc]
    dst, src = f"%r{insn.dst}", f"%r{insn.src}"
    operand = src if op.register else str(insn.imm)
    name = mnemonic(op)
    match op.kind:
        case Kind.SWAP:
            return f"{name} {dst}"
        case Kind.ALU:
            return f"{name} {dst}" if op.name == "neg" else f"{name} {dst}, {operand}"
        case Kind.WIDE:
            return f"{name} {dst}, {_wide(insn, insns[pc + 1], names)}"
        case Kind.LOAD | Kind.LOADSX:
            return f"{name} {dst}, [{src}{_offset(insn.off)}]"
        case Kind.STORE | Kind.ATOMIC:
            return f"{name} [{dst}{_offset(insn.off)}], {operand}"
        case Kind.JUMP:
            return f"{name} {dst}, {operand}, {_target(pc, insn, op, names)}"
        case Kind.GOTO:
            return f"{name} {_target(pc, insn, op, names)}"
        case Kind.CALL if op.register:
            return f"{name} {_target(pc, insn, op, names)}"
        case Kind.CALL:
            helper = HELPER_BY_ID.get(insn.imm)
            return f"{name} {helper.name if helper else insn.imm}"
        case Kind.EXIT:
            return name


def _wide(first: Insn, second: Insn, names: _Names) -> str:
    if first.src == Pseudo.IMMEDIATE:
        return f"0x{wide(first, second):x}"
    name = names.maps.get(first.imm, str(first.imm))
    return f"map:{name}" if first.src == Pseudo.MAP else f"value:{name}{_offset(second.imm)}"


def _offset(off: int) -> str:
    return f"{off:+}" if off else ""


def _target(pc: int, insn: Insn, op: Operation, names: _Names) -> str:
    to = _distance(insn, op)
    return names.labels.get(pc + 1 + to, f"{to:+}")
