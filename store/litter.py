"""Files that do not count: parts that are not what was sealed, and what crashes and strangers leave behind."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import derived, durable, manifest, map_streams, parquet, retention, spool
from .budget import RESERVE_FILE
from .reader import Part, Trace
from .tables import EVENTS

DAMAGED_FOLDER = "damaged"
"""Where repair puts what it cannot read: nothing is thrown away that somebody might still want."""

_KNOWN = {
    manifest.FILE,
    "tables",
    map_streams.KEY,
    spool.FOLDER,
    DAMAGED_FOLDER,
    *manifest.STREAM_NAMES,
    *derived.NAMES,
}
_EVENTS_FILE = re.compile(EVENTS.name + r"-\d{6,12}\.parquet")
_DERIVED_FILE = re.compile(r"[a-z]+-(lost-)?\d{6,12}\.parquet")
_STATE_FILE = re.compile(r"open-\d{6,12}\.state")


def unsound(part: Part) -> str | None:
    """Why a part cannot be trusted; None when its size and CRC-32 are what the manifest says."""
    try:
        if not stat.S_ISDIR(os.lstat(part.path.parent).st_mode):
            return "is missing: its folder is none"
        size, crc = parquet.file_crc(part.path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size != part.bytes:
        return f"has {size} bytes instead of {part.bytes}"
    return None if crc == part.crc32 else "fails its checksum"


def litter(trace: Trace) -> Iterator[tuple[str, str]]:
    """Files in the trace's directory that do not count: (file, one of the kinds below).

    temporary, sealed, derived, retired: left behind by a crash; part: in no manifest; damaged: put aside; unknown: not
    ours.
    """
    m = trace.manifest
    for entry in _listed(trace.path):
        if entry.name.endswith(durable.TEMPORARY) and entry.name.startswith("."):
            yield entry.name, "temporary"
        elif entry.name not in _KNOWN:
            yield entry.name, "unknown"
    counted = {s: {p["file"] for p in derived.parts_of(m, s)} for s in (*manifest.streams_of(m), *derived.NAMES)}
    counted["tables"] = {t["file"] for t in m["tables"].values()}
    for stream, files in counted.items():
        folder = parquet.folder_of(stream)
        for entry in _listed(trace.path / folder):
            name = f"{folder}/{entry.name}"
            if entry.name.endswith(durable.TEMPORARY):
                yield name, "temporary"
            elif entry.name not in files and folder in derived.NAMES and _DERIVED_FILE.fullmatch(entry.name):
                yield name, "derived"
            elif entry.name not in files and stream == EVENTS.name and _is_retired(m, entry.name):
                yield name, "retired"
            elif entry.name not in files:
                yield name, "part" if entry.name.endswith(".parquet") else "unknown"
    state = ((m.get(derived.KEY) or {}).get("state") or {}).get("file")
    maps = {s.partition(".")[2] for s in m.get(map_streams.KEY, {})}
    for entry in _listed(trace.path / map_streams.KEY):
        if entry.name not in maps:
            yield f"{map_streams.KEY}/{entry.name}", "unknown"
    live = {f.path.stem for s in manifest.spooled_of(m) for f in trace.spooled(s)}
    for entry in _listed(trace.path / spool.FOLDER):
        name = f"{spool.FOLDER}/{entry.name}"
        stream, _, number = entry.stem.rpartition("-")
        ours = entry.suffix in (spool.DATA, spool.SUMS) and stream in manifest.spooled_of(m) and number.isdecimal()
        if entry.name == RESERVE_FILE or (entry.name.startswith(".") and entry.name.endswith(durable.TEMPORARY)):
            yield name, "temporary"
        elif _STATE_FILE.fullmatch(entry.name):
            if entry.name != state:
                yield name, "derived"
        elif not ours:
            yield name, "unknown"
        elif int(number) <= m["spool_sealed"][stream]:
            yield name, "sealed"
        elif entry.stem not in live and entry.suffix == spool.SUMS:
            yield name, "unknown"
    for entry in _listed(trace.path / DAMAGED_FOLDER):
        yield f"{DAMAGED_FOLDER}/{entry.name}", "damaged"


def _is_retired(content: Mapping[str, Any], name: str) -> bool:
    return _EVENTS_FILE.fullmatch(name) is not None and retention.is_retired(content, derived.number_of(name))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if not folder.is_symlink() else []
    except OSError:
        return []
