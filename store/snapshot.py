"""A snapshot of a trace: what is sealed and what is still in the spool, at one moment.

A writer may seal while a trace is opened. The manifest is read, every spool file beyond it is opened, and the
manifest is read again: when it has not moved, the two fit, and every row is in a part or in the tail and never in
both. The open descriptors keep the tail readable when the writer goes on to seal and remove those files.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import derived, manifest, spool

TAIL_BYTES = 256 << 20
"""At most this much of a stream's spool is read as its tail, in stored form."""
ROW_BYTES = 128

_ATTEMPTS = 50


@dataclass
class Snapshot:
    """`content`: of the manifest; `files`: of the spool beyond it, by stream; `notes`: what a reader must be told."""

    content: dict[str, Any]
    files: dict[str, list[spool.SpoolFile]]
    notes: list[str]
    state_fd: int = -1

    @classmethod
    def take(cls, path: Path) -> Snapshot:
        """Of the trace at `path`, without waiting for anybody. Raises Refused as `manifest.read`."""
        taken = cls._try(path, manifest.read(path))
        for attempt in range(_ATTEMPTS):
            again = manifest.read(path)
            settled = again["spool_sealed"] == taken.content["spool_sealed"]
            settled &= not taken._lacks_state or again.get(derived.KEY) == taken.content.get(derived.KEY)
            if settled and not (attempt < 2 and taken.notes):
                break
            taken.close()
            time.sleep(0.001 * attempt)
            # Not `again`: it may be old by now, and of a fast recording would be at every attempt.
            taken = cls._try(path, manifest.read(path))
        return taken

    @classmethod
    def _try(cls, path: Path, content: dict[str, Any]) -> Snapshot:
        notes: list[str] = []
        return cls(content, _open_spool(path, content, notes), notes, derived.open_state(path, content))

    @property
    def _lacks_state(self) -> bool:
        return self.state_fd < 0 and "state" in (self.content.get(derived.KEY) or {})

    def carried(self) -> bytes | None:
        """What derivation carries over from its last step; None where that is not kept or damaged."""
        return derived.read_state(self.state_fd, self.content)

    def close(self) -> None:
        """Let go of the files."""
        for of_stream in self.files.values():
            for f in of_stream:
                f.close()
        self.files = {}
        if self.state_fd >= 0:
            os.close(self.state_fd)
            self.state_fd = -1

    def __del__(self) -> None:
        self.close()


def _open_spool(path: Path, content: dict[str, Any], notes: list[str]) -> dict[str, list[spool.SpoolFile]]:
    """Every spool file beyond what is sealed, opened; only the newest that fit in a tail keep a descriptor."""
    folder = path / spool.FOLDER
    out: dict[str, list[spool.SpoolFile]] = {}
    if not is_folder(folder):
        if content["state"] != "sealed":
            notes.append("the spool is missing: rows that were not sealed are lost")
        return out
    for stream in manifest.spooled_of(content):
        sealed = content["spool_sealed"][stream]
        numbers = [n for n in spool.numbers(folder, stream) if n > sealed]
        files: list[spool.SpoolFile] = []
        rows = 0
        for n in reversed(numbers):
            name = spool.file_name(stream, n)
            try:
                f = spool.scan(folder / name, content["id"], keep_open=rows <= TAIL_BYTES // ROW_BYTES)
            except OSError as error:
                if not _is_begun(folder / name):
                    notes.append(f"{spool.FOLDER}/{name} was left out: {error.strerror}")
                continue
            rows += f.rows
            files.insert(0, f)
        if missing := sum(last - first + 1 for first, last in spool.gaps(numbers, sealed)):
            notes.append(f"{spool.FOLDER}: {missing} files of {stream} are missing")
        out[stream] = files
    return out


def _is_begun(data: Path) -> bool:
    """Is this a file that its writer is about to create, of which only the sums are there, and promise nothing?"""
    try:
        return not data.exists() and data.with_suffix(spool.SUMS).stat().st_size == 0
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
