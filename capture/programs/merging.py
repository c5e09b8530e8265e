"""How what a map holds in several banks becomes one: of the workers of a monitor, of epochs, of engines.

Histograms and stats always merge. Of other aggregations the program's own code says how: where all it does to a map is
adding, the sum of two banks is what one would hold, and so with minima and maxima. Anything else does not merge.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from .helpers import HELPER_BY_ID, Effect
from .histogram import HEAD
from .isa import Kind, operation
from .maps import MapKind
from .verdict import Region, Verdict

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
_KEYED = {"map_add": "ADD", "map_min": "MIN", "map_max": "MAX"}


class Rule(Enum):
    """What becomes of two values of one key."""

    ADD = auto()
    MIN = auto()
    MAX = auto()
    STATS = auto()
    """count and sum are added, of min the least and of max the greatest, then the rest is added"""


def rule_of(verdict: Verdict, index: int) -> Rule | None:
    """How banks of one of the program's maps merge; None: they do not."""
    declared = verdict.program.maps[index]
    if declared.kind in (MapKind.HIST, MapKind.STATS):
        return Rule.STATS
    found: set[Rule | None] = set()
    for pc in verdict.reachable:
        insn = verdict.program.insns[pc]
        if verdict.call_maps.get(pc) == index:
            helper = HELPER_BY_ID[insn.imm]
            if helper.name in _KEYED:
                found.add(Rule[_KEYED[helper.name]])
            elif helper.effect == Effect.LIVE and helper.name != "map_lookup_elem":
                found.add(None)
        access = verdict.access.get(pc)
        if access is not None and access.region == Region.VALUE and access.map == index:
            what = operation(insn)
            if what is not None and what.kind in (Kind.STORE, Kind.ATOMIC):
                adds = what.kind == Kind.ATOMIC and what.name == "add" and what.size == 8
                found.add(Rule.ADD if adds else None)
    return found.pop() if len(found) == 1 and declared.value_size % 8 == 0 else None


def _sorted(keys: U8) -> tuple[I64, I64]:
    """An order of keys [n, key_size] as exports have it, and where in it each different key begins."""
    order = np.lexsort(keys.T)
    first = np.ones(len(keys), np.bool_)
    first[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    return order, np.nonzero(first)[0]


def groups(keys: U8) -> tuple[U8, I64]:
    """The different ones of keys [n, key_size], sorted as exports are, and [n] which of them each is."""
    order, starts = _sorted(keys)
    group = np.empty(len(keys), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(keys))))
    return keys[order[starts]], group


def merge(rule: Rule, keys: U8, values: U8) -> tuple[U8, U8]:
    """One bank out of entries keys [n, key_size] and values [n, value_size], sorted as exports are."""
    order, starts = _sorted(keys)
    if not len(starts):
        return keys, values
    keys, words = keys[order], np.ascontiguousarray(values[order]).view("<u8")
    if rule == Rule.ADD:
        out = np.add.reduceat(words, starts)
    elif rule == Rule.MIN:
        out = np.minimum.reduceat(words, starts)
    elif rule == Rule.MAX:
        out = np.maximum.reduceat(words, starts)
    else:
        out = np.empty((len(starts), words.shape[1]), "<u8")
        out[:, :2] = np.add.reduceat(words[:, :2], starts)
        out[:, 2] = np.minimum.reduceat(words[:, 2], starts)
        out[:, 3] = np.maximum.reduceat(words[:, 3], starts)
        out[:, HEAD:] = np.add.reduceat(words[:, HEAD:], starts)
    return keys[starts], np.ascontiguousarray(out).view(np.uint8).reshape(len(starts), -1)
