"""Whether 32 lanes may run a program on 32 events in any order and interleaving: SIMT, or serial and why.

A program is SIMT if whatever it does to maps commutes, and whatever it reads is the same in any order: the row,
read-only maps, feedback cells, closed epochs. What it does to maps is a list of `Update`s; two of them on one map
commute if they touch different bytes of a value, or do the same to the same bytes: adding to words of one size, taking
the minimum, the maximum, or, and, xor. The value of an array may be looked up for an atomic, since where it is depends
on the key alone; whether a key of a hash is there depends on what other lanes did.
"""

from __future__ import annotations

from typing import NamedTuple

from ..maps import Map

BITWISE = frozenset(("or", "and", "xor"))
"""Of these, bytes do not depend on each other, so that sizes may differ."""


class Update(NamedTuple):
    """A commuting change at slot `pc` of bytes [low, high) of a value: words of `size` bytes, each `name`d."""

    pc: int
    map: int
    name: str
    size: int
    low: int
    high: int
    by: str
    """how the program says it: `map_add`, `a 32-bit atomic add`"""


class Effects:
    """What the instructions of a program do that others can see."""

    def __init__(self, maps: tuple[Map, ...]) -> None:
        self.maps = maps
        self.updates: dict[Update, None] = {}
        self.order_matters: dict[int, str] = {}
        """by slot, what depends on the order of events there"""

    def update(self, update: Update) -> None:
        self.updates[update] = None

    def depends(self, pc: int, why: str) -> None:
        self.order_matters.setdefault(pc, why)

    def serial(self) -> tuple[str, int]:
        """Why the program is serial and at which slot: the first such slot; ("", -1) if it is SIMT."""
        found = dict(self.order_matters)
        for index in {u.map for u in self.updates}:
            pair = _first_conflict([u for u in sorted(self.updates) if u.map == index])
            if pair:
                early, late = pair
                why = f"{late.by} does not commute with {early.by} at instruction {early.pc}"
                found.setdefault(late.pc, f"{why}, both on map {self.maps[index].name}")
        return (found[min(found)], min(found)) if found else ("", -1)


def _first_conflict(updates: list[Update]) -> tuple[Update, Update] | None:
    """Two updates of one map that do not commute, the later of them as early as can be. updates: by slot."""
    touched: dict[tuple[str, int], int] = {}
    for i, late in enumerate(updates):
        span, kind = (1 << late.high) - (1 << late.low), (late.name, late.size)
        # bytes as bits: few kinds stand against many updates, which may be as many as steps were explored
        if any(span & other for k, other in touched.items() if k != kind):
            early = next((u for u in updates[:i] if not commute(u, late)), None)
            if early:
                return early, late
        touched[kind] = touched.get(kind, 0) | span
    return None


def commute(a: Update, b: Update) -> bool:
    """Whether the order of two updates, of whatever entries of their maps, changes nothing."""
    if a.map != b.map or a.high <= b.low or b.high <= a.low:
        return True
    return a.name == b.name and (a.size == b.size or a.name in BITWISE)
