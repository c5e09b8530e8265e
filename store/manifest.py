"""The manifest: what a trace is, who wrote it, and which rows are sealed in which part.

`manifest.json` is replaced as a whole and carries the CRC-32 of its own content: a manifest that was changed in any
way after it was written is refused, because a wrong time range would hide rows from a query without a word. What is
read is checked key by key all the same; nobody is kept from computing a checksum.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import durable
from .errors import Refused
from .manifest_rules import (
    GIVEN,
    SPOOLED,
    STREAM_NAMES,
    Bad,
    add_new_tables,
    bit_of,
    check_content,
    check_plain,
    check_versions,
    no_constant,
    slot_of,
    spooled_of,
    streams_of,
    unique_keys,
)
from .tables import ABI_MAJOR, ABI_MINOR, FORMAT_VERSION, schema_hash

__all__ = [
    "FILE",
    "GIVEN",
    "SPOOLED",
    "STREAM_NAMES",
    "Manifest",
    "bit_of",
    "checksum",
    "fresh",
    "parse",
    "read",
    "slot_of",
    "spooled_of",
    "streams_of",
    "write",
]

FILE = "manifest.json"
_LIMIT = 64 << 20
_WHAT = "cannot open the trace"


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
    except (FileNotFoundError, NotADirectoryError):
        why = f"{path} has no {FILE}"
        if not path.is_dir():
            why = f"{path} is not a directory" if os.path.lexists(path) else f"there is no {path}"
        raise Refused(_WHAT, why, "give the path of a NAME.mscope directory") from None
    except OSError as error:
        raise Refused(_WHAT, f"{path / FILE}: {error.strerror}") from None
    return parse(raw, str(path / FILE))


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """The checked manifest in `raw`; `where` names it in errors.

    Raises Refused.
    """
    try:
        manifest = json.loads(raw, parse_constant=no_constant, object_pairs_hook=unique_keys)
        if not isinstance(manifest, dict):
            raise Bad("is not a JSON object")
        check_versions(manifest)
        check_plain(manifest, "", 0)
        if manifest.get("crc32") != checksum(manifest):
            raise Bad("fails its own checksum: it was damaged or changed by hand")
        add_new_tables(manifest)
        check_content(manifest)
    except Bad as bad:
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
                check_plain(copy, "", 0)
                check_content(copy)
            except Bad as bad:
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
        "schema_hash": schema_hash(),
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
