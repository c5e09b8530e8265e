"""The manifest: what a trace is, who wrote it, and which rows are sealed in which part.

`manifest.json` is replaced as a whole and carries the CRC-32 of its own content: a manifest that was changed in any
way after it was written is refused, because a wrong time range would hide rows from a query without a word. What is
read is checked key by key all the same; nobody is kept from computing a checksum.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import durable
from .errors import Refused
from .tables import (
    ABI_MAJOR,
    ABI_MINOR,
    ENGINE_TABLES,
    FORMAT_VERSION,
    HOOK_BY_NAME,
    LOSS,
    PROGRAMS,
    SIDE_TABLES,
    STREAMS,
)
from .tables import schema_hash as current_schema_hash

FILE = "manifest.json"
STATES = ("recording", "sealed", "unsealed")
STREAM_NAMES = tuple(t.name for t in STREAMS)
TABLE_NAMES = tuple(t.name for t in SIDE_TABLES)
SPOOLED = (*STREAM_NAMES, *(t.name for t in ENGINE_TABLES))
"""What passes through the spool, in the order in which it is sealed."""

GIVEN = ("engine", "clock", "programs", "perturbation")
"""Keys that the recorder supplies and may update; all others are the store's own."""

_LIMIT = 64 << 20
_DEPTH = 16
_I64 = 1 << 63
_PART_KEYS = {"rows": 1 << 40, "bytes": 1 << 46, "crc32": (1 << 32) - 1}
_WHAT = "cannot open the trace"


class _Bad(Exception):
    """What is wrong with a value, and where."""


def checksum(manifest: dict[str, Any]) -> int:
    """CRC-32 of the manifest's content without its `crc32`: keys sorted, no blanks, ASCII."""
    body = {k: v for k, v in manifest.items() if k != "crc32"}
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


def write(path: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of the trace at `path`, durably.

    Raises OSError, and then the old one is still there.
    """
    manifest["crc32"] = checksum(manifest)
    with durable.replacing(path / FILE) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """The checked manifest of the trace at `path`.

    Raises Refused when there is none, or when it is damaged, of another version, or says something impossible.
    """
    try:
        raw = durable.read_regular(path / FILE, _LIMIT)
    except FileNotFoundError:
        why = f"{path} has no {FILE}" if path.is_dir() else f"{path} is not a directory"
        raise Refused(_WHAT, why, "give the path of a NAME.mscope directory") from None
    except OSError as error:
        raise Refused(_WHAT, f"{path / FILE}: {error.strerror}") from None
    return parse(raw, str(path / FILE))


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """The checked manifest in `raw`; `where` names it in errors.

    Raises Refused.
    """
    try:
        manifest = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=_unique)
        if not isinstance(manifest, dict):
            raise _Bad("is not a JSON object")
        _versions(manifest)
        _plain(manifest, "", 0)
        if manifest.get("crc32") != checksum(manifest):
            raise _Bad("fails its own checksum: it was damaged or changed by hand")
        _check(manifest)
    except _Bad as bad:
        raise Refused(_WHAT, f"{where} {bad}", "run megascope check on it") from None
    except (ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else "it is nested too deeply"
        raise Refused(_WHAT, f"{where} is not JSON: {first[:200]}", "run megascope check on it") from None
    return manifest


class Manifest:
    """The manifest of a trace that is being written: changed under a lock, on disk before anyone sees it."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self._content, self._lock = path, content, threading.Lock()

    def commit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply `change` to a copy, write it, and only then take it over.

        Raises OSError (nothing has changed then) and Refused for content that could not be opened again.
        """
        with self._lock:
            copy: dict[str, Any] = json.loads(json.dumps(self._content))
            change(copy)
            try:
                _plain(copy, "", 0)
                _check(copy)
            except _Bad as bad:
                raise Refused("cannot write the manifest", f"it {bad}") from None
            write(self.path, copy)
            self._content = copy

    def snapshot(self) -> dict[str, Any]:
        """A copy of what is on disk."""
        with self._lock:
            copy: dict[str, Any] = json.loads(json.dumps(self._content))
            return copy


def fresh(
    *, name: str, trace_id: str, created_utc: str, writer: dict[str, Any], max_bytes: int | None
) -> dict[str, Any]:
    """A manifest of a trace without rows."""
    return {
        "format": FORMAT_VERSION,
        "abi": [ABI_MAJOR, ABI_MINOR],
        "schema_hash": current_schema_hash(),
        "id": trace_id,
        "name": name,
        "created_utc": created_utc,
        "writer": writer,
        "engine": {},
        "clock": {"fits": []},
        "programs": [],
        "perturbation": {},
        "streams": {n: {"parts": []} for n in STREAM_NAMES},
        "tables": {},
        "spool_sealed": dict.fromkeys(SPOOLED, 0),
        "budget": {"max_bytes": max_bytes},
        "state": "recording",
        "end": None,
    }


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key stands twice")
    return out


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _versions(m: dict[str, Any]) -> None:
    if m.get("format") != FORMAT_VERSION or isinstance(m.get("format"), bool):
        raise _Bad(f"has format {_short(m.get('format'))}, this version reads {FORMAT_VERSION}")
    abi = m.get("abi")
    if not isinstance(abi, list) or len(abi) != 2 or not all(type(v) is int and 0 <= v < 1 << 16 for v in abi):
        raise _Bad(f"has hook ABI {_short(abi)}, which is no version")
    if abi[0] != ABI_MAJOR:
        raise _Bad(f"has hook ABI {abi[0]}.{abi[1]}, this version reads {ABI_MAJOR}.x")
    if m.get("schema_hash") != current_schema_hash():
        raise _Bad(f"has schema hash {_short(m.get('schema_hash'))}, this version reads {current_schema_hash()[:16]}…")


def _plain(value: Any, where: str, depth: int) -> None:
    """Sizes that any reader can hold: 64-bit integers, finite floats, bounded depth."""
    if depth > _DEPTH:
        raise _Bad(f"is nested too deeply at {where[:100]}")
    if isinstance(value, dict):
        for k, v in value.items():
            if not isinstance(k, str):
                raise _Bad(f"has a key that is no text at {where[:100] or 'its top'}")
            _plain(v, f"{where}.{k}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            _plain(v, f"{where}[{i}]", depth + 1)
    elif isinstance(value, float):
        if value - value != 0:
            raise _Bad(f"has a number that is not finite at {where[:100]}")
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -_I64 <= value < _I64:
            raise _Bad(f"has a number beyond 64 bits at {where[:100]}")
    elif isinstance(value, str):
        if "\ud800" <= max(value, default="") <= "\udfff" or any("\ud800" <= c <= "\udfff" for c in value):
            raise _Bad(f"has text that is no Unicode at {where[:100]}")
    elif value is not None and not isinstance(value, bool):
        raise _Bad(f"has a value that is no JSON at {where[:100]}")


def _short(value: Any) -> str:
    return repr(value)[:40]


def _need(container: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = container.get(key)
    if type(value) is not kind:
        raise _Bad(f"has no {kind.__name__} at {where}{key}")
    return value


def _need_int(container: dict[str, Any], key: str, low: int, high: int, where: str) -> int:
    value: int = _need(container, key, int, where)
    if not low <= value <= high:
        raise _Bad(f"says {where}{key} is {_short(value)}")
    return value


def _check(m: dict[str, Any]) -> None:
    if not re.fullmatch(r"[0-9a-f]{32}", _need(m, "id", str, "")):
        raise _Bad("has an id that is not 32 hexadecimal digits")
    for key in ("name", "created_utc"):
        _need(m, key, str, "")
    writer = _need(m, "writer", dict, "")
    _need_int(writer, "pid", 0, 1 << 31, "writer.")
    _need_int(writer, "start", 0, _I64 - 1, "writer.")
    if _need(m, "state", str, "") not in STATES:
        raise _Bad(f"has state {_short(m['state'])}")
    end = m.get("end", ...)
    if end is not None and (not isinstance(end, dict) or not isinstance(end.get("reason"), str)):
        raise _Bad("has an end without a reason")
    max_bytes = _need(m, "budget", dict, "").get("max_bytes")
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
        raise _Bad(f"has a disk budget of {_short(max_bytes)}")
    _check_given(m)
    _check_sealed(m)


def _check_given(m: dict[str, Any]) -> None:
    engine = _need(m, "engine", dict, "")
    for key, value in engine.items():
        if key in ("pid", "clock_tick_ns", "epoch_ns"):
            _need_int(engine, key, 0, _I64 - 1, "engine.")
        elif key in ("name", "kind", "clock_kind", "policy"):
            _need(engine, key, str, "engine.")
        elif key == "exported_hooks":
            if not isinstance(value, list) or not all(isinstance(h, str) and h in HOOK_BY_NAME for h in value):
                raise _Bad(f"exports hooks that the ABI does not have: {_short(value)}")
        elif key == "params":
            _need(engine, key, dict, "engine.")
    fits = _need(_need(m, "clock", dict, ""), "fits", list, "clock.")
    for fit in fits:
        if not isinstance(fit, dict):
            raise _Bad("has a clock fit that is no object")
        for key in ("host_ns", "device_ns", "error_ns"):
            _need_int(fit, key, -_I64, _I64 - 1, "clock.fits.")
    for row in _need(m, "programs", list, ""):
        if not isinstance(row, dict) or set(row) != set(PROGRAMS.names):
            raise _Bad(f"has a program that is no row of {', '.join(PROGRAMS.names)}")
        _need_int(row, "program", 1, 32, "programs.")
        for name in PROGRAMS.names[1:]:
            _need(row, name, str, "programs.")
    _need(m, "perturbation", dict, "")


def _check_sealed(m: dict[str, Any]) -> None:
    streams = _need(m, "streams", dict, "")
    if set(streams) != set(STREAM_NAMES):
        raise _Bad("lists other streams than " + ", ".join(STREAM_NAMES))
    for name in STREAM_NAMES:
        parts = _need(_need(streams, name, dict, "streams."), "parts", list, f"streams.{name}.")
        files = set()
        for part in parts:
            if not isinstance(part, dict):
                raise _Bad(f"has a part of {name} that is no object")
            _check_file(part, name, rf"{name}-\d{{6,12}}\.parquet")
            if "since_saturated" in part:
                _need_int(part, "since_saturated", 0, part["rows"], f"streams.{name}.")
            low, high = part.get("t_min"), part.get("t_max")
            known = type(low) is int and type(high) is int and low <= high
            if not known and (low is not None or high is not None or name == "events"):
                raise _Bad(f"has no time range for {part['file']}")
            files.add(part["file"])
        if len(files) != len(parts):
            raise _Bad(f"lists a part of {name} twice")
    for loss in _need(m, "repair", list, "") if "repair" in m else ():
        if not isinstance(loss, dict) or set(loss) != set(LOSS.names):
            raise _Bad("has a pending loss that is no row of loss")
    tables = _need(m, "tables", dict, "")
    for name, entry in tables.items():
        if name not in TABLE_NAMES or not isinstance(entry, dict):
            raise _Bad(f"lists a table {_short(name)} that does not exist")
        _check_file(entry, name, rf"{name}\.parquet")
    sealed = _need(m, "spool_sealed", dict, "")
    if set(sealed) != set(SPOOLED):
        raise _Bad("has no spool_sealed for every stream")
    for name in SPOOLED:
        _need_int(sealed, name, 0, 10**12, "spool_sealed.")


def _check_file(entry: dict[str, Any], stream: str, pattern: str) -> None:
    # A whole match of a plain name: neither "/" nor ".." can be in it.
    file = entry.get("file")
    if not isinstance(file, str) or not re.fullmatch(pattern, file):
        raise _Bad(f"names a file {_short(file)} for {stream}")
    for key, high in _PART_KEYS.items():
        _need_int(entry, key, 0, high, f"{stream}.")
