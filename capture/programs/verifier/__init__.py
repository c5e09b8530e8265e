"""The verifier: a program is safe to run on every event, on every target, or it is refused with the reason.

Safe means that an accepted program reads nothing that is not set, touches nothing but its row, its stack and values of
its maps, each as allowed, shows no pointer, and ends within its stated cost. Rules in design §7; who holds them:

    declarations   entries, functions and maps
    structure      instructions, one by one; jumps, calls, recursion
    explore        every path from an entry, executed abstractly, cut where a proof exists (`needs`, `state`)
      arithmetic     numbers (`transfer` on `values`) and offsets of pointers
      jumps          which sides a comparison leaves (`branches`), and null checks
      memory         context, stack, values of maps
      calls          helpers and the program's own functions
    simt, cost     may lanes run in any order; what 32 of them cost together
"""

from __future__ import annotations

from ..program import STACK_BYTES, Program
from ..verdict import Rejected, Verdict
from . import declarations
from .cost import LANES, batch
from .explore import Explorer
from .registers import read_only
from .structure import Code
from .walk import Facts

__all__ = ["verify"]


def verify(program: Program) -> Verdict:
    """The verdict on a program. Raises Rejected: at which instruction, for which register, and why."""
    declarations.check(program)
    code = Code(program)
    facts = Facts(program)
    explorer = Explorer(program, code, facts)
    explored = [(entry, *explorer.run(entry)) for entry in program.entries]
    serial_because, serial_pc = facts.effects.serial()
    if serial_because:
        _refuse_shared(program, facts, serial_because, serial_pc)
    cost: dict[int, int] = {}
    batch_cost: dict[int, int] = {}
    for entry, worst, reachable, rounds in explored:
        together = LANES * worst if serial_because else batch(code, reachable, worst, rounds)
        cost |= dict.fromkeys(entry.hooks, worst)
        batch_cost |= dict.fromkeys(entry.hooks, together)
    frames = {start: -(-depth // 8) * 8 for start, depth in facts.depth.items()}
    return Verdict(
        program,
        {pc: access for pc, (access, _) in facts.access.items()},
        facts.call_maps,
        frozenset(facts.reachable),
        frozenset(facts.columns),
        cost,
        batch_cost,
        serial_because,
        serial_pc,
        _deepest(program, code, frames),
        frames,
        facts.emits,
        explorer.steps,
    )


def _refuse_shared(program: Program, facts: Facts, because: str, at: int) -> None:
    """Serial programs run lanes in the order of one worker's events; between workers there is none."""
    used = [(pc, index) for pc, index in facts.call_maps.items()]
    used += [(pc, access.map) for pc, (access, _) in facts.access.items() if access.map >= 0]
    for pc, index in sorted(used):
        m = program.maps[index]
        if m.shared and not read_only(m):
            reason = f"map {m.name} is shared, and the program is serial: {because} (instruction {at})"
            raise Rejected(program, pc, reason, todo="make the map per worker, or let all effects commute")


def _deepest(program: Program, code: Code, frames: dict[int, int]) -> int:
    """Bytes of stack over the deepest chain of calls."""
    total: dict[int, int] = {}
    for start in code.callees_first:
        if start not in frames:
            continue
        total[start] = frames[start]
        for pc, callee in code.calls[start]:
            if callee in frames:
                total[start] = max(total[start], frames[start] + total[callee])
            if total[start] > STACK_BYTES:
                chain = f"{code.name(start)} ({frames[start]}) and what it calls from here"
                raise Rejected(program, pc, f"{chain} need {total[start]} bytes of stack, more than {STACK_BYTES}")
    return max((total[e.pc] for e in program.entries), default=0)
