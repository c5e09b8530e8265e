"""What 32 events cost together, at most.

One event costs at most the longest path that exploration found; `explore` computes that. A serial program runs lane
after lane, so that 32 events cost at most 32 times as much. A SIMT program runs its lanes in lockstep: at each issue
those lanes advance that stand at the lowest slot, so that a slot is paid once for all of them (and where lanes part,
once for each part). `batch` bounds the issues of each slot.

1. Every issue advances some lane, so that 32 times the cost of one event is a bound whatever the program.
2. Let slot p lie in no loop, that is, no jump goes from p or beyond back to p or before. When p is issued, every lane
   stands at p or beyond; a lane beyond never comes back to p. So p is issued once.
3. Let loops, as intervals from the target of a jump back to the jump, be disjoint or nested. When the jump of loop L,
   its last slot, is issued, every lane stands there or beyond, so that all lanes still in L go round together: between
   two jumps back, the slots of L are passed in ascending order, each issued at most once (or, in an inner loop, as
   often as that says). L thus makes at most 1 + r passes for each pass of the loop around it, if no lane goes back
   more than r times for each. A slot is issued at most as often as the product of 1 + r over the loops around it.
4. Loops that overlap without nesting, and calls of functions (a return goes back, to wherever its lane came from), are
   left to the first bound.

Lanes of one batch may be at different hooks. Entries share no slots but functions that they call, so that such a batch
costs at most the sum of the bounds of its entries.
"""

from __future__ import annotations

from math import prod

from .structure import Code, Loop

LANES = 32


def nested(loops: list[Loop]) -> bool:
    """Whether any two are disjoint or one lies in the other."""
    ordered = sorted(loops, key=lambda x: (x.first, -x.last))
    around: list[Loop] = []
    for loop in ordered:
        while around and around[-1].last < loop.first:
            around.pop()
        if around and loop.last > around[-1].last:
            return False
        around.append(loop)
    return True


def countable(code: Code) -> bool:
    """Whether 3 applies to the program's loops."""
    return nested(code.loops) and not any(code.calls.values())


def batch(code: Code, reachable: set[int], cost: int, rounds: list[int]) -> int:
    """Bound for 32 events of one entry of a SIMT program; see the module.

    reachable: slots that the entry executes; cost: of one event; rounds: by loop of a countable program, how often any
    path goes back at most while it stays in the loop around.
    """
    loops = [(x, r) for x, r in zip(code.loops, rounds, strict=False) if x.last in reachable]
    goes_back = any(x.last in reachable for x in code.loops)
    calls = any(pc in reachable for some in code.calls.values() for pc, _ in some)
    if calls or (goes_back and not countable(code)):
        return LANES * cost
    total = 0
    for pc in reachable:
        op = code.ops[pc]
        if op:
            total += op.cost * prod(1 + r for x, r in loops if x.first <= pc <= x.last)
    return min(total, LANES * cost)
