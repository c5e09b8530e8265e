"""What an instruction is called in assembly text; read off `isa.operation`, so that both ways agree with it.

The names are those of the bpf_conformance suite: `add32`, `ldxdw`, `movsx832`, `lock fetch add`, `call local`.
"""

from __future__ import annotations

from itertools import product

from .isa import Insn, Kind, Operation, operation

_LETTERS = {1: "b", 2: "h", 4: "w", 8: "dw"}


def mnemonic(op: Operation) -> str:
    """The name of an operation; with the form of its operand (register or immediate) it tells the encoding."""
    narrow = "32" if op.bits == 32 else ""
    match op.kind:
        case Kind.SWAP:
            return f"{op.name}{op.bits}"
        case Kind.ALU if op.name == "movsx":
            return f"movsx{op.size * 8}{op.bits}"
        case Kind.LOAD | Kind.LOADSX | Kind.STORE:
            return op.name + _LETTERS[op.size]
        case Kind.ATOMIC:
            plain = op.name in ("xchg", "cmpxchg") or not op.fetch
            return f"lock {op.name}{narrow}" if plain else f"lock fetch {op.name}{narrow}"
        case Kind.CALL if op.register:
            return "call local"
        case _:
            return op.name + narrow


def _encodings() -> dict[tuple[str, bool], tuple[Operation, Insn]]:
    """Every encoding that `operation` knows, by trying all that its answer can depend on."""
    out: dict[tuple[str, bool], tuple[Operation, Insn]] = {}
    atomics = (0x40, 0x41, 0x50, 0x51, 0xA0, 0xA1, 0xE1, 0xF1)
    for op, off, imm, src in product(range(256), (0, 1, 8, 16, 32), (0, 1, 16, 32, 64, *atomics), (0, 1)):
        insn = Insn(op, 0, src, off, imm)
        meaning = operation(insn)
        if meaning and not (src and meaning.register and meaning.kind != Kind.CALL):
            out.setdefault((mnemonic(meaning), meaning.register), (meaning, insn))
    return out


ENCODINGS = _encodings()
"""By mnemonic and whether the operand is a register: what it means, and an instruction whose free fields are 0."""

MNEMONICS = frozenset(name for name, _ in ENCODINGS)
