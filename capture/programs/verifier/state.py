"""All that is known at one point of one path: frames of registers and stack, outermost first."""

from __future__ import annotations

from collections.abc import Callable

from ..isa import R1, R10, REGISTERS
from .needs import FIRST_SLOT, FRAME, Needs
from .registers import CHECKED, ZERO, Content, Dead, Pointer, To
from .stack import SLOTS, WHOLE, Bytes, Slot, Stack
from .values import UNKNOWN, Scalar, hull, within

_EVERY = (1 << FIRST_SLOT + SLOTS) - 1 & ~(1 << R10)
"""places of a frame that may differ: all but r10"""


class Frame:
    """A function that runs. start: its first slot; call: slot of the CALL, -1 for an entry."""

    __slots__ = ("call", "registers", "stack", "start")

    def __init__(self, start: int, call: int, registers: list[Content], stack: Stack) -> None:
        self.start, self.call, self.registers, self.stack = start, call, registers, stack


class State:
    """Frames, and how often each loop that surrounds has gone round; see `cost`."""

    __slots__ = ("frames", "rounds")

    def __init__(self, frames: list[Frame], rounds: tuple[int, ...]) -> None:
        self.frames, self.rounds = frames, rounds

    @classmethod
    def at_entry(cls, start: int, loops: int) -> State:
        state = cls([], (0,) * loops)
        state.push(start, -1, [None] * REGISTERS)
        state.frames[0].registers[R1] = Pointer(To.CONTEXT)
        return state

    def push(self, start: int, call: int, arguments: list[Content]) -> None:
        """Begin a function: of the caller's registers it sees r1 to r5."""
        registers = [None, *arguments[1:6], None, None, None, None, Pointer(To.STACK, ident=len(self.frames))]
        self.frames.append(Frame(start, call, registers, {}))

    def copy(self) -> State:
        return State([Frame(f.start, f.call, f.registers.copy(), f.stack.copy()) for f in self.frames], self.rounds)

    def replace(self, is_it: Callable[[Scalar | Pointer], bool], by: Callable[[Scalar | Pointer], Content]) -> int:
        """Put something else in every place that `is_it` accepts. Returns the places."""
        places = 0
        for i, frame in enumerate(self.frames):
            base = 1 << FRAME * i
            for r, held in enumerate(frame.registers):
                if isinstance(held, Scalar | Pointer) and is_it(held):
                    frame.registers[r] = by(held)
                    places |= base << r
            for s, slot in list(frame.stack.items()):
                content = slot.number if isinstance(slot, Bytes) else slot
                if not isinstance(content, Dead) and is_it(content):
                    places |= base << FIRST_SLOT + s
                    new = by(content)
                    if isinstance(new, Scalar):
                        frame.stack[s] = Bytes(slot.written if isinstance(slot, Bytes) else WHOLE, new)
                    elif new is not None:
                        frame.stack[s] = new
        return places

    def learn(self, link: int, known: Scalar) -> int:
        """Every copy of a number is now known to be this. Returns the places."""
        return self.replace(lambda c: isinstance(c, Scalar) and c.link == link, lambda _: known)

    def resolve(self, lookup: int, null: bool) -> None:
        """Every copy of what a lookup returned is now known to be null, or not to be."""
        self.replace(
            lambda c: isinstance(c, Pointer) and c.ident == lookup and c.to in CHECKED,
            lambda c: ZERO if null or not isinstance(c, Pointer) else Pointer(CHECKED[c.to], c.offset, c.map),
        )

    def kill(self, map_index: int, why: str) -> None:
        """Values of a map may be gone. Those of a closed epoch stay."""
        self.replace(
            lambda c: isinstance(c, Pointer) and c.map == map_index and c.to in (To.VALUE, To.VALUE_OR_NULL),
            lambda _: Dead(why),
        )


def blend(state: State, old: State, exact: int, forget: bool) -> None:
    """Know less: numbers that `old` does not cover and that must be `exact` become what allows both, or any number.

    Knowing less is always sound. Both have the same frames.
    """
    for i, (now, was) in enumerate(zip(state.frames, old.frames, strict=True)):
        places = exact >> FRAME * i
        for r in range(R10):
            held, other = now.registers[r], was.registers[r]
            if places >> r & 1 and isinstance(held, Scalar) and isinstance(other, Scalar) and not within(held, other):
                now.registers[r] = UNKNOWN if forget else hull(held, other)
        for s, slot in now.stack.items():
            before = was.stack.get(s)
            if places >> FIRST_SLOT + s & 1 and isinstance(slot, Bytes) and isinstance(before, Bytes):
                number = UNKNOWN if forget else hull(slot.number, before.number)
                if not within(slot.number, before.number):
                    now.stack[s] = Bytes(slot.written, number)


def covers(old: State, new: State, needs: Needs | None) -> bool:
    """Whether what was found out from `old`, needing `needs` of it, holds from `new` as well.

    needs: None for all, with exact ranges. Links and lookups are names: what had one name in `old` must have one in
    `new`, since what was learnt of one copy was believed of the other.
    """
    if len(old.frames) != len(new.frames):
        return False
    names: dict[int, object] = {}
    for i, (was, now) in enumerate(zip(old.frames, new.frames, strict=True)):
        if was.call != now.call:
            return False
        reads = exact = _EVERY
        if needs is not None:
            reads, exact = needs.reads >> FRAME * i & _EVERY, needs.exact >> FRAME * i
        while reads:
            low = reads & -reads
            reads ^= low
            place = low.bit_length() - 1
            if place < FIRST_SLOT:
                held = was.registers[place]
                if held is not None and not _covers(held, now.registers[place], exact & low, names):
                    return False
            else:
                slot = was.stack.get(place - FIRST_SLOT)
                if slot is not None and not _covers_slot(slot, now.stack.get(place - FIRST_SLOT), exact & low, names):
                    return False
    return True


def _covers_slot(old: Slot, new: Slot | None, exact: int, names: dict[int, object]) -> bool:
    if isinstance(old, Bytes):
        if not isinstance(new, Bytes) or old.written & ~new.written:
            return False
        return _covers(old.number, new.number, exact, names)
    return _covers(old, new if isinstance(new, Pointer) else None, 1, names)


def _covers(old: Content, new: Content, exact: int, names: dict[int, object]) -> bool:
    if isinstance(old, Scalar):
        if not isinstance(new, Scalar):
            return False
        if not exact:
            return True
        return within(new, old) and (not old.link or _same_name(old.link, _name(new), names))
    if isinstance(old, Pointer):
        if (
            not isinstance(new, Pointer)
            or old.to is not new.to
            or old.map != new.map
            or not within(new.offset, old.offset)
        ):
            return False
        if old.to in CHECKED:
            return _same_name(-old.ident, -new.ident, names)
        return old.ident == new.ident
    return True


def _name(scalar: Scalar) -> object:
    if not scalar.mask:
        return ("constant", scalar.value)
    return scalar.link or object()


def _same_name(old: int, new: object, names: dict[int, object]) -> bool:
    return names.setdefault(old, new) == new
