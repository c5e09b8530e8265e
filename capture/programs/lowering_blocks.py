"""The basic blocks of one eBPF function, found by walking from its first instruction."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ...store.errors import Refused
from .isa import Insn, Kind, operation, target

DEAD = -1
"""Where an edge leads that no path takes, by the verifier's word."""


class CannotLower(Refused):
    """Code that has no lowering: at which instruction, and why."""

    def __init__(self, what: str, pc: int, reason: str) -> None:
        super().__init__(what, f"instruction {pc} cannot be lowered: {reason}", "run megascope program check on it")
        self.pc, self.reason = pc, reason


@dataclass(frozen=True)
class Blocks:
    """slots: by a block's first slot, those of its instructions; edges: by the same, the first slots of what follows
    (after a jump: taken, not taken)."""

    slots: dict[int, list[int]]
    edges: dict[int, list[int]]


def follows(insns: tuple[Insn, ...], pc: int, what: str) -> list[int]:
    """Slots that may come after `pc`. Raises CannotLower for an instruction that is none."""
    op = operation(insns[pc])
    if op is None:
        raise CannotLower(what, pc, f"no instruction is encoded as {insns[pc]}")
    after = pc + op.slots
    if op.kind is Kind.EXIT:
        return []
    if op.kind is Kind.GOTO:
        return [after + target(insns[pc])]
    if op.kind is Kind.JUMP:
        return [after + target(insns[pc]), after]
    return [after]


def blocks(insns: tuple[Insn, ...], entry: int, reachable: Set[int] | None, what: str) -> Blocks:
    """Blocks of the function that begins at `entry`. reachable: slots that may be executed, None: any."""
    edges: dict[int, list[int]] = {}
    leaders = {entry}
    queue = [entry]
    while queue:
        pc = queue.pop()
        if pc in edges:
            continue
        if not 0 <= pc < len(insns):
            raise CannotLower(what, pc, f"control leaves the {len(insns)} slots of the program")
        alive = [n if reachable is None or n in reachable else DEAD for n in follows(insns, pc, what)]
        edges[pc] = alive
        op = operation(insns[pc])
        if op is not None and op.kind in (Kind.JUMP, Kind.GOTO):
            leaders.update(alive)
        queue += [n for n in alive if n != DEAD]
    leaders.discard(DEAD)
    return _gather(edges, leaders)


def _gather(edges: dict[int, list[int]], leaders: set[int]) -> Blocks:
    out = Blocks({}, {})
    for leader in sorted(leaders):
        pc, slots = leader, [leader]
        while len(edges[pc]) == 1 and edges[pc][0] not in leaders and edges[pc][0] != DEAD:
            pc = edges[pc][0]
            slots.append(pc)
        out.slots[leader], out.edges[leader] = slots, edges[pc]
    return out
