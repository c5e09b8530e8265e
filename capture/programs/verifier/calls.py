"""Calls: of helpers, each argument what `helpers.HELPERS` wants and allowed; and of the program's own functions."""

from __future__ import annotations

from ..helpers import Arg, Effect, Helper, Returns
from ..isa import R0, R1
from ..maps import Map
from ..program import STACK_BYTES
from .memory import check_written, stack_range, value_range
from .needs import CALLER_SAVED, Step, enter, slots
from .registers import CHECKED, Pointer, To, read_only
from .simt import Update
from .stack import span
from .structure import Op
from .values import UNKNOWN, Scalar
from .walk import Walk

_WORD = 8
_UPSERTS = {"map_add": "add", "map_min": "min", "map_max": "max"}
"""Helpers whose values are one u64, and what they do to it."""
_RETURNED = {Returns.VALUE_OR_NULL: To.VALUE_OR_NULL, Returns.CLOSED_OR_NULL: To.CLOSED_OR_NULL}


def call_helper(walk: Walk, op: Op) -> Step:
    """Raises Rejected."""
    helper = op.helper
    assert helper is not None
    read, index = 0, -1
    for i, arg in enumerate(helper.args):
        register = R1 + i
        content = walk.read(register)
        read |= walk.place(register)
        if arg is Arg.MAP:
            index = _map(walk, helper, content)
        elif arg is Arg.SCALAR:
            walk.number(register, f"is passed to {helper.name} as a number")
        elif arg is Arg.CONTEXT:
            _context(walk, helper, content, register)
        else:
            m = walk.maps[index]
            read |= _buffer(walk, helper, content, m.key_size if arg is Arg.KEY else m.value_size, register)
    walk.registers[R0 : R0 + 6] = [_result(walk, helper, index), None, None, None, None, None]
    return CALLER_SAVED << walk.base, read, 0, 0, 0


def _map(walk: Walk, helper: Helper, content: Scalar | Pointer) -> int:
    """Index of the map in r1, which suits the helper."""
    if isinstance(content, Scalar) or content.to is not To.MAP:
        raise walk.rejected(f"{helper.name} takes a map, not {walk.describe(R1)}", R1)
    m = walk.maps[content.map]
    if m.kind not in helper.maps:
        kinds = ", ".join(k.name.lower() for k in helper.maps)
        raise walk.rejected(f"{helper.name} takes maps of kind {kinds}; {m.name} is of kind {m.kind.name.lower()}", R1)
    if helper.returns is Returns.CLOSED_OR_NULL and not m.aggregate:
        raise walk.rejected(f"{helper.name} reads aggregations; map {m.name} is state and has no closed epochs", R1)
    if helper.returns is Returns.SCALAR and read_only(m):
        raise walk.rejected(f"{helper.name} writes map {m.name}, which is read-only", R1)
    if helper.name in _UPSERTS and m.value_size != _WORD:
        raise walk.rejected(
            f"{helper.name} needs values of {_WORD} bytes; those of map {m.name} have {m.value_size}", R1
        )
    known = walk.facts.call_maps.setdefault(walk.pc, content.map)
    if known != content.map:
        one, other = walk.maps[known].name, m.name
        raise walk.rejected(
            f"on one path {helper.name} is of map {one}, on another of {other}", R1, "use a call for each"
        )
    return content.map


def _context(walk: Walk, helper: Helper, content: Scalar | Pointer, register: int) -> None:
    if walk.program.kind != "observe":
        raise walk.rejected(f"{helper.name} needs an event; only observe programs see one")
    if isinstance(content, Scalar) or content.to is not To.CONTEXT:
        raise walk.rejected(f"{helper.name} takes the context, not {walk.describe(register)}", register)
    if content.offset.value or content.offset.mask:
        raise walk.rejected(f"{helper.name} takes the context's begin, not a pointer into it", register)


def _buffer(walk: Walk, helper: Helper, content: Scalar | Pointer, size: int, register: int) -> int:
    """`size` bytes that the helper reads. Returns the stack slots' places."""
    if isinstance(content, Pointer) and content.to is To.STACK:
        low, high = stack_range(walk, content, 0, size, register)
        check_written(walk, content, low, high, register)
        return slots(content.ident, span(low, high))
    if isinstance(content, Pointer) and content.to in (To.VALUE, To.CLOSED):
        value_range(walk, content, 0, size, register)
        m = walk.maps[content.map]
        if content.to is To.VALUE and not read_only(m):
            walk.facts.effects.depends(walk.pc, f"{helper.name} reads live values of map {m.name}")
        return 0
    what = f"{helper.name} takes a pointer to {size} bytes of the stack or of a value, not {walk.describe(register)}"
    null = isinstance(content, Pointer) and content.to in CHECKED
    raise walk.rejected(what, register, "compare it with 0 before" if null else "copy them to the stack")


def _result(walk: Walk, helper: Helper, index: int) -> Scalar | Pointer:
    """What the call returns; and what it does to maps."""
    effects = walk.facts.effects
    if Arg.CONTEXT in helper.args:
        walk.facts.emits = True
    if helper.name == "ktime_get_ns":
        walk.facts.columns.add("t")
    if index < 0:
        return UNKNOWN
    m = walk.maps[index]
    if helper.effect is Effect.LIVE and not (helper.returns is Returns.VALUE_OR_NULL and _same_in_any_order(m)):
        effects.depends(walk.pc, f"{helper.name} of map {m.name} depends on what earlier events did")
    elif helper.effect is Effect.COMMUTES:
        name = _UPSERTS.get(helper.name, helper.name)
        effects.update(Update(walk.pc, index, name, _WORD, 0, m.value_size, helper.name))
    if helper.name == "map_delete_elem":
        why = f"pointed to a value of map {m.name}, which {helper.name} at instruction {walk.pc} may have freed"
        walk.state.kill(index, why)
    to = _RETURNED.get(helper.returns)
    return Pointer(to, map=index, ident=walk.fresh()) if to else UNKNOWN


def _same_in_any_order(m: Map) -> bool:
    """Whether what a lookup returns depends on the key alone."""
    return read_only(m) or m.indexed


def call_local(walk: Walk, op: Op) -> Step:
    """Into a function of the program, with a stack frame of its own."""
    used = sum(-(-walk.facts.depth[f.start] // 8) * 8 for f in walk.state.frames)
    if used > STACK_BYTES:
        raise walk.rejected(f"the frames of this chain of calls need {used} bytes of stack, more than {STACK_BYTES}")
    step = enter(len(walk.state.frames) - 1)
    walk.state.push(op.to, walk.pc, walk.registers)
    walk.go(walk.state)
    walk.facts.depth.setdefault(op.to, 0)
    return step


def leave_local(walk: Walk) -> tuple[Step, int]:
    """Back to the caller, and the slot there. r6 to r9 are as they were before the call."""
    state, result = walk.state, walk.registers[R0]
    depth = len(state.frames) - 1
    if isinstance(result, Pointer) and result.to is To.STACK and result.ident == depth:
        raise walk.rejected("a pointer to this function's stack would outlive the call", R0)
    inner = walk.place(R0) if result is not None else 0
    call = state.frames.pop().call
    walk.go(state)
    walk.registers[R0 : R0 + 6] = [result, None, None, None, None, None]
    after = walk.code.ops[call]
    assert after is not None
    return (CALLER_SAVED << walk.base, inner, walk.place(R0), inner, 0), after.next
