"""Streams whose columns a program declares: what its maps held, one stream for each map.

The recorder declares a stream when it first meets the map; from then on the manifest says its columns, and it is
spooled, sealed, checked and repaired as any other. A stream is called `maps.NAME`, as SQL calls it, and its parts are
in the folder `maps/NAME`. What all of them have in common stands here; in its middle are the map's own columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .tables import Column, Table

KEY = "maps"
"""Of the manifest, and the folder of a trace; also the schema in SQL."""
MOST_STREAMS, MOST_COLUMNS = 1024, 512
TYPES = ("i16", "i32", "i64", "bool", "str", "i64s")
"""What a map's own columns may be."""

BEFORE = (
    Column("program", "i32", "key of `programs`"),
    Column("rank", "i16", "device"),
    Column("worker", "i32", "worker; null: merged over `workers` workers", "", True),
    Column("workers", "i32", "how many workers the row stands for"),
    Column("epoch", "i64", "first epoch: t div epoch length"),
    Column("epochs", "i32", "how many epochs the row spans"),
    Column("t_begin", "i64", "begin of the first", "ns"),
    Column("t_end", "i64", "end of the last; of state the moment at which it stood so", "ns"),
)
AFTER = (
    Column("eligible", "i64", "events that the program was attached to, over the same workers and epochs"),
    Column("observed", "i64", "of them, those that it ran for"),
    Column("throttled", "i64", "its budget was spent"),
    Column("lost", "i64", "never dequeued"),
    Column("faulted", "i64", "stopped by the VM"),
    Column("refused", "i64", "updates that found the map full, of the whole map"),
)
FIXED = frozenset(c.name for c in (*BEFORE, *AFTER))
_NAME = re.compile(r"maps\.[a-z][a-z0-9_]{0,100}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_KEYS = {"name", "type", "meaning", "unit", "nullable"}


def table(name: str, meaning: str, own: Sequence[Column]) -> Table:
    """The stream `maps.NAME` of a map with these columns. Raises ValueError for names that no stream can have."""
    declared = Table(f"{KEY}.{name}", meaning, (*BEFORE, *own, *AFTER))
    _check(declared.name, entry(declared))
    return declared


def entry(declared: Table) -> dict[str, Any]:
    """What the manifest says of it."""
    own = declared.columns[len(BEFORE) : len(declared.columns) - len(AFTER)]
    columns = [{k: getattr(c, k) for k in ("name", "type", "meaning", "unit", "nullable")} for c in own]
    return {"meaning": declared.meaning, "columns": columns}


def check(streams: Any) -> tuple[str, ...]:
    """The names of a manifest's map streams. Raises ValueError for anything that `entry` does not write."""
    if not isinstance(streams, dict) or len(streams) > MOST_STREAMS:
        raise ValueError(f"has no object of at most {MOST_STREAMS} maps")
    for name, said in streams.items():
        _check(name, said)
    return tuple(streams)


def _check(name: str, said: Any) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"names a stream {name[:40]!r}")
    columns = said.get("columns") if isinstance(said, dict) else None
    if not isinstance(columns, list) or not isinstance(said.get("meaning"), str) or len(columns) > MOST_COLUMNS:
        raise ValueError(f"has no columns of {name}, or more than {MOST_COLUMNS}")
    seen = {c.lower() for c in FIXED}
    for c in columns:
        if not isinstance(c, dict) or set(c) != _KEYS or not all(isinstance(c[k], str) for k in _KEYS - {"nullable"}):
            raise ValueError(f"has a column of {name} that is no object of {', '.join(sorted(_KEYS))}")
        if not _COLUMN.fullmatch(c["name"]) or c["name"].lower() in seen or c["type"] not in TYPES:
            raise ValueError(f"has a column {c['name'][:40]!r} of type {c['type'][:10]!r} in {name}")
        if not isinstance(c["nullable"], bool):
            raise ValueError(f"does not say whether {name}.{c['name']} is nullable")
        seen.add(c["name"].lower())


def tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """The map streams of a checked manifest, by name."""
    return {
        name: table(name.removeprefix(f"{KEY}."), said["meaning"], [Column(**c) for c in said["columns"]])
        for name, said in content.get(KEY, {}).items()
    }
