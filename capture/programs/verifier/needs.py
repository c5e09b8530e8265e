"""What the rest of a path relies on: which registers and stack slots it reads, and of which the exact range mattered.

Places are bits: 64 to a frame, outermost lowest; in a frame r0 to r10, then its 32 stack slots. Verification from a
state needs its places in `reads` to hold what they held (a number, or that pointer), and the numbers in `exact` to lie
within the ranges that they had: only these decided a branch or an address. A number that is not in `exact` could have
been any number. Two states that agree on what is needed are proven safe by the same proof, which is what makes
exploration finite; see `explore`.

Needs are found backwards over a finished path, one `Step` an instruction, as in McMillan's interpolants (CAV 2006).
"""

from __future__ import annotations

from typing import NamedTuple

FRAME = 64
FIRST_SLOT = 11
_ARGUMENTS = 0b111110
CALLER_SAVED = 0b111111

Step = tuple[int, int, int, int, int]
"""(written, read, to, of, exact): places wholly overwritten; read; and if a place in `to` must be exact, those in `of`
must have been; those in `exact` must have been in any case."""


class Needs(NamedTuple):
    """Bits of places; see the module."""

    reads: int = 0
    exact: int = 0


NONE = Needs()


def slots(frame: int, bits: int) -> int:
    """Places of a frame's stack slots, given as bits."""
    return bits << FIRST_SLOT + FRAME * frame


def enter(frame: int) -> Step:
    """A call of a local function from this frame: r1 to r5 are handed over, nothing else of the new frame is set."""
    return (-1 - frame, 0, 0, 0, 0)


def before(trail: list[Step], after: Needs) -> Needs:
    """What is needed before these steps, given what is needed after them."""
    reads, exact = after
    for written, read, to, of, always in reversed(trail):
        if written < 0:
            frame = -1 - written
            shift, below = FRAME * (frame + 1), (1 << FRAME * (frame + 1)) - 1
            reads = reads & below | (reads >> shift & _ARGUMENTS) << FRAME * frame
            exact = exact & below | (exact >> shift & _ARGUMENTS) << FRAME * frame
            continue
        linked = exact & to
        reads = reads & ~written | read
        exact = exact & ~written | always
        if linked:
            exact |= of
    return Needs(reads, exact)
