"""What the maps of a program take of an engine's arena, whoever executes it."""

from __future__ import annotations

from ..programs.maps import FIXED_VALUE_BYTES, Map, MapKind
from ..programs.program import Program

ENTRY_BYTES = 16
"""Beside key and value: hash, state and count of an entry of a keyed map."""


def aggregates(declared: Map) -> bool:
    """Whether a map is exported and begun anew at each epoch's end."""
    return declared.aggregate or declared.kind in (MapKind.HIST, MapKind.STATS)


def is_shared(declared: Map) -> bool:
    """Whether one map serves all workers of a rank."""
    return declared.shared or declared.kind == MapKind.FEEDBACK


def map_bytes(declared: Map) -> int:
    """Bytes of one map of one worker (or one rank, when it is shared): two banks for an aggregation."""
    value = FIXED_VALUE_BYTES.get(declared.kind, declared.value_size)
    entry = value if declared.indexed else value + declared.key_size + ENTRY_BYTES
    return declared.max_entries * -(-entry // 8) * 8 * (2 if aggregates(declared) else 1)


def needed(program: Program, workers: int, ranks: int) -> int:
    """Bytes of all maps of a program for so many workers of so many ranks."""
    return sum(map_bytes(m) * (ranks if is_shared(m) else workers) for m in program.maps)
