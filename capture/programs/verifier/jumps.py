"""Conditional jumps: which sides a path can take, and what is known on each.

A comparison of numbers narrows both, and every copy of them (`branches`). A pointer is compared with 0 only, to tell
whether there is a value; any other comparison would show what the pointer is.
"""

from __future__ import annotations

from .branches import outcomes
from .needs import Step
from .registers import CHECKED, Pointer
from .state import State
from .structure import Op
from .values import Scalar, text
from .walk import Walk

Sides = list[tuple[State, bool]]
"""States in which a path goes on, and whether it jumps; of two, the first does not and the second is a copy."""


def jump(walk: Walk, op: Op) -> tuple[Step, Sides]:
    """Kind.JUMP. No sides: the path cannot be. Raises Rejected."""
    a = walk.read(op.dst)
    b = walk.read(op.src) if op.register else op.operand
    places = walk.place(op.dst) | (walk.place(op.src) if op.register else 0)
    if not isinstance(a, Scalar) or not isinstance(b, Scalar):
        return _compare_pointer(walk, op, a, b, places)
    yes, no = outcomes(op.name, op.bits, a, b)
    if yes is None or no is None:
        # what was known of the operands decided: it was needed exactly
        return (0, places, 0, 0, places), [] if yes is no else [(walk.state, no is None)]
    other = walk.state.copy()
    linked = _learn(walk.state, op, no) | _learn(other, op, yes)
    return (0, places, places | linked, places | linked, 0), [(walk.state, False), (other, True)]


def _learn(state: State, op: Op, known: tuple[Scalar, Scalar]) -> int:
    """Both operands of a comparison, and their copies. Returns the copies' places."""
    registers = state.frames[-1].registers
    places = 0
    for register, number in ((op.dst, known[0]), (op.src, known[1]))[: 1 + op.register]:
        held = registers[register]
        link = held.link if isinstance(held, Scalar) else 0
        registers[register] = number
        if link:
            places |= state.learn(link, number)
    return places


def _compare_pointer(walk: Walk, op: Op, a: Scalar | Pointer, b: Scalar | Pointer, places: int) -> tuple[Step, Sides]:
    blamed = op.dst if isinstance(a, Pointer) else op.src
    what = walk.describe(op.dst)
    hidden = "what a pointer is must not show"
    if not isinstance(a, Pointer) or not isinstance(b, Scalar) or b.value or b.mask:
        other = walk.describe(op.src) if op.register else text(op.operand)
        raise walk.rejected(f"{what} is compared with {other}; {hidden}", blamed)
    if op.name not in ("jeq", "jne") or op.bits == 32 or not (a.to in CHECKED or a.to in CHECKED.values()):
        how = " in 32 bits" if op.bits == 32 else ""
        raise walk.rejected(f"{what} is compared by {op.name}{how}; {hidden}", blamed)
    # that the other operand is 0 was needed exactly
    step = (0, places, 0, 0, places & ~walk.place(op.dst))
    if a.to not in CHECKED:
        if a.offset.value or a.offset.mask:
            raise walk.rejected(f"{what} is compared after an offset; {hidden}", blamed)
        return step, [(walk.state, op.name == "jne")]
    other_state = walk.state.copy()
    walk.state.resolve(a.ident, null=op.name == "jne")
    other_state.resolve(a.ident, null=op.name == "jeq")
    return step, [(walk.state, False), (other_state, True)]
