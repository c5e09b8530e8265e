"""What a register may hold besides a number: a pointer, and what to call each in a sentence.

A register that was never set is None, and one whose pointer died is `Dead`; no instruction may read either.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..maps import Map, MapKind
from .values import Scalar, constant, text

BOUND = 1 << 29
"""Bytes that a pointer may be away from what it points into, so that address arithmetic wraps nowhere."""
ZERO = constant(0)


class To(Enum):
    """What a pointer points to. The two that may be null are no addresses until they are compared with 0."""

    CONTEXT = "the context"
    STACK = "the stack"
    MAP = "a map"
    VALUE = "a value"
    CLOSED = "a value of a closed epoch"
    VALUE_OR_NULL = "a value, or null"
    CLOSED_OR_NULL = "a value of a closed epoch, or null"


CHECKED = {To.VALUE_OR_NULL: To.VALUE, To.CLOSED_OR_NULL: To.CLOSED}
"""What a pointer is when it has been shown not to be null."""
VALUES = frozenset((To.VALUE, To.CLOSED, To.VALUE_OR_NULL, To.CLOSED_OR_NULL))


class Pointer(NamedTuple):
    """A pointer. map: index, of MAP and values. offset: bytes from the begin, on the stack from the frame's end.

    ident: of STACK the frame, outermost 0; of what may be null the lookup, the same for every copy of its result.
    """

    to: To
    offset: Scalar = ZERO
    map: int = -1
    ident: int = 0


class Dead(NamedTuple):
    """What is left of a pointer that must not be used any more. why: a sentence's end, after what held it."""

    why: str


Content = Scalar | Pointer | Dead | None


def bytes_from(low: int, high: int) -> str:
    """For people: the bytes [low, high)."""
    return f"byte {low}" if high == low + 1 else f"bytes {low} to {high - 1}"


def outside(pointer: Pointer, low: int, high: int, what: str) -> str:
    """For people: an access through this pointer leaves what it points into."""
    return f"{bytes_from(low, high)} {'can' if pointer.offset.mask else 'would'} be outside {what}"


def read_only(m: Map) -> bool:
    """Whether programs may not write the map's values."""
    return m.read_only or m.kind == MapKind.FEEDBACK


def describe(content: Content, maps: tuple[Map, ...]) -> str:
    """For people: `a number (0..31)`, `a pointer to a value of map m`."""
    if content is None:
        return "not set"
    if isinstance(content, Scalar):
        return f"a number ({text(content)})"
    if isinstance(content, Dead):
        return "a pointer that is dead"
    if content.to == To.MAP:
        return f"map {maps[content.map].name}"
    if content.to in VALUES:
        null = "null or " if content.to in CHECKED else ""
        closed = " in the closed epoch" if content.to in (To.CLOSED, To.CLOSED_OR_NULL) else ""
        return f"{null}a pointer to a value of map {maps[content.map].name}{closed}"
    return f"a pointer to {content.to.value}"
