"""Which registers hold pointers whose place is known when the program is lowered.

`r10 - 8` and the address of a global are almost all the pointers there are. Where lowering knows them, LLVM sees an
offset into one object instead of an integer made a pointer, and keys that are built on the stack stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .isa import R0, R10, REGISTERS, Insn, Kind, Operation, Pseudo, operation

FRAME = -1


class Place(NamedTuple):
    """`offset` bytes after the end of the frame (map = FRAME) or after the begin of a global map's only value."""

    map: int
    offset: int


State = tuple[Place | None, ...]
"""By register; None: not known."""
ENTRY: State = (None,) * R10 + (Place(FRAME, 0),)
UNKNOWN: State = (None,) * REGISTERS


def written(insn: Insn, op: Operation) -> tuple[int, ...]:
    """Registers that an instruction sets."""
    if op.kind in (Kind.ALU, Kind.SWAP, Kind.WIDE, Kind.LOAD, Kind.LOADSX):
        return (insn.dst,)
    if op.kind is Kind.ATOMIC and op.fetch:
        return (R0,) if op.name == "cmpxchg" else (insn.src,)
    return tuple(range(R0, 6)) if op.kind is Kind.CALL else ()


def advance(insns: Sequence[Insn], pc: int, state: State) -> State:
    """The state after the instruction at slot `pc`."""
    insn = insns[pc]
    op = operation(insn)
    if op is None:
        return UNKNOWN
    places = list(state)
    known = _place(insns, pc, insn, op, state)
    for register in written(insn, op):
        places[register] = known
    return tuple(places)


def _place(insns: Sequence[Insn], pc: int, insn: Insn, op: Operation, state: State) -> Place | None:
    if op.kind is Kind.WIDE and insn.src == Pseudo.VALUE and pc + 1 < len(insns):
        return Place(insn.imm, insns[pc + 1].imm)
    if op.kind is not Kind.ALU or op.bits != 64:
        return None
    if op.name == "mov" and op.register:
        return state[insn.src]
    base = state[insn.dst]
    if base and not op.register and op.name in ("add", "sub"):
        return Place(base.map, base.offset + (insn.imm if op.name == "add" else -insn.imm))
    return None


def places(
    insns: Sequence[Insn], blocks: Mapping[int, Sequence[int]], edges: Mapping[int, Sequence[int]], entry: int
) -> dict[int, State]:
    """The state at the begin of each block of a function.

    blocks: by first slot, the slots of the instructions; edges: by first slot, the blocks that may follow.
    """
    states = {entry: ENTRY}
    queue = [entry]
    while queue:
        block = queue.pop()
        state = states[block]
        for pc in blocks[block]:
            state = advance(insns, pc, state)
        for follower in edges[block]:
            old = states.get(follower)
            new = state if old is None else tuple(a if a == b else None for a, b in zip(old, state, strict=True))
            if new != old:
                states[follower] = new
                queue.append(follower)
    return states
