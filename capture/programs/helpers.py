"""Every helper that a program may call, once: number, arguments, effect, cost, meaning.

The verifier, both executions, the device VM and the header for eBPF C are rendered from or checked against this table.
Numbers below 1000 are the kernel's for the same helper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .maps import MapKind


class Arg(Enum):
    """What a register must hold at the call."""

    MAP = auto()
    """a map, known when the program is verified"""
    KEY = auto()
    """a readable pointer to key_size initialised bytes"""
    VALUE = auto()
    """a readable pointer to value_size initialised bytes"""
    SCALAR = auto()
    CONTEXT = auto()


class Returns(Enum):
    SCALAR = auto()
    """a number; 0 where the helper says nothing else"""
    VALUE_OR_NULL = auto()
    """a pointer to a value of the map in r1, writable unless the map is read-only"""
    CLOSED_OR_NULL = auto()
    """a read-only pointer to a value of the last closed epoch"""


class Effect(Enum):
    """What makes a program serial. Effects that commute leave it SIMT."""

    NONE = auto()
    COMMUTES = auto()
    LIVE = auto()
    """reads or writes live state in a way that depends on order"""


@dataclass(frozen=True)
class Helper:
    """A helper. cost: instructions it counts as; maps: kinds that r1 may be."""

    id: int
    name: str
    args: tuple[Arg, ...]
    returns: Returns
    effect: Effect
    cost: int
    meaning: str
    maps: tuple[MapKind, ...] = ()


_KEYED = (Arg.MAP, Arg.KEY)
_UPSERT = (Arg.MAP, Arg.KEY, Arg.SCALAR)
_PLAIN = (MapKind.HASH, MapKind.ARRAY)

HELPERS = (
    Helper(
        1,
        "map_lookup_elem",
        _KEYED,
        Returns.VALUE_OR_NULL,
        Effect.LIVE,
        16,
        "the value of a key, or null; of a read-only or feedback map it depends on no order",
        (*_PLAIN, MapKind.FEEDBACK),
    ),
    Helper(
        2,
        "map_update_elem",
        (Arg.MAP, Arg.KEY, Arg.VALUE, Arg.SCALAR),
        Returns.SCALAR,
        Effect.LIVE,
        32,
        "set a key's value; flags 0 any, 1 only a new key, 2 only an old one; "
        "0, or -22 other flags, -17 the key is there, -2 it is not, -7 the map is full or an array has no such index "
        "(counted as map_full)",
        _PLAIN,
    ),
    Helper(
        3,
        "map_delete_elem",
        _KEYED,
        Returns.SCALAR,
        Effect.LIVE,
        32,
        "delete a key: 0, or -2 it is not there; pointers to values of the map die",
        (MapKind.HASH,),
    ),
    Helper(5, "ktime_get_ns", (), Returns.SCALAR, Effect.NONE, 1, "t of the event, ns"),
    Helper(
        1001,
        "map_add",
        _UPSERT,
        Returns.SCALAR,
        Effect.COMMUTES,
        24,
        "value[key] += r3, from 0 for a new key; values are u64; returns 0 always, a full map is counted as map_full",
        _PLAIN,
    ),
    Helper(
        1002,
        "map_min",
        _UPSERT,
        Returns.SCALAR,
        Effect.COMMUTES,
        24,
        "value[key] = min(value[key], r3) unsigned, r3 for a new key; returns 0 always",
        (MapKind.HASH,),
    ),
    Helper(
        1003,
        "map_max",
        _UPSERT,
        Returns.SCALAR,
        Effect.COMMUTES,
        24,
        "value[key] = max(value[key], r3) unsigned, r3 for a new key; returns 0 always",
        _PLAIN,
    ),
    Helper(
        1004,
        "hist_add",
        _UPSERT,
        Returns.SCALAR,
        Effect.COMMUTES,
        32,
        "count r3 in the histogram of a key; returns 0 always, a full map is counted as map_full",
        (MapKind.HIST,),
    ),
    Helper(
        1005,
        "stats_add",
        _UPSERT,
        Returns.SCALAR,
        Effect.COMMUTES,
        32,
        "count r3 in count, sum, min and max of a key; returns 0 always, a full map is counted as map_full",
        (MapKind.STATS,),
    ),
    Helper(
        1006,
        "map_closed",
        _KEYED,
        Returns.CLOSED_OR_NULL,
        Effect.NONE,
        16,
        "the value that a key of an aggregation had when this worker's last epoch closed, or null, as before the first "
        "close",
        (*_PLAIN, MapKind.HIST, MapKind.STATS),
    ),
    Helper(
        1007,
        "emit",
        (Arg.CONTEXT,),
        Returns.SCALAR,
        Effect.COMMUTES,
        2,
        "export this event's row; once per event however often it is called; returns 0 always",
    ),
)
HELPER_BY_ID = {h.id: h for h in HELPERS}
HELPER_BY_NAME = {h.name: h for h in HELPERS}

E_EXIST, E_NOENT, E_2BIG, E_INVAL = -17, -2, -7, -22
ANY, NEW, OLD = 0, 1, 2
"""Flags of map_update_elem."""
