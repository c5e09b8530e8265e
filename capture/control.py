"""Finding live engines and asking what they do: reads segments, needs no CUDA and no trace."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..store.errors import MegascopeError, Usage
from .now import Look, now
from .segment.process import alive
from .segment.reader import EngineStatus, SegmentReader

__all__ = ["SUFFIX", "Found", "Look", "directory", "find", "look", "now", "only_live", "prune", "segment_of"]

SUFFIX = ".mseg"


def directory() -> Path:
    """Where segments stand: $MEGASCOPE_DIR, else /dev/shm."""
    return Path(os.environ.get("MEGASCOPE_DIR", "/dev/shm"))


@dataclass(frozen=True)
class Found:
    """A segment file: what it says of its engine, or why it cannot be read."""

    path: Path
    name: str = ""
    pid: int = 0
    clock: int = 0
    workers: int = 0
    monitors: int = 0
    bytes: int = 0
    status: EngineStatus | None = None
    drainer: int = 0
    """pid that holds the lease, 0 none"""
    silent_s: float = 0.0
    """seconds since the engine's host side last gave a sign of life"""
    problem: str = ""

    @property
    def live(self) -> bool:
        return self.status is not None and self.status.text in ("running", "starting")


def look(path: Path) -> Found:
    """One segment file; never raises for what the file holds."""
    try:
        with SegmentReader.open(path) as segment:
            status, lay = segment.status(), segment.layout
            pid, start = segment.lease()
            return Found(
                path,
                lay.name,
                lay.engine_pid,
                lay.clock,
                lay.workers,
                lay.monitors,
                lay.file_bytes,
                status,
                pid if alive(pid, start) else 0,
                max(0.0, (time.time_ns() - status.heartbeat_ns) / 1e9),
            )
    except MegascopeError as e:
        return Found(path, problem=e.why)


def find() -> list[Found]:
    """Every segment in `directory()`, newest first."""
    try:
        paths = [p for p in directory().iterdir() if p.name.endswith(SUFFIX)]
    except OSError as e:
        raise MegascopeError(
            f"cannot look for engines in {directory()}", e.strerror or str(e), "set MEGASCOPE_DIR"
        ) from e
    paths.sort(key=_modified, reverse=True)
    return [look(p) for p in paths]


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def only_live() -> Path:
    """The segment meant when none is named. Raises Usage unless exactly one is live."""
    live = [f for f in find() if f.live]
    if len(live) == 1:
        return live[0].path
    if not live:
        raise Usage("no target given", f"no engine is live in {directory()}", "try capture demo, or name a segment")
    names = ", ".join(str(f.path) for f in live)
    raise Usage("no target given", f"{len(live)} engines are live", f"name one of {names}")


def segment_of(pid: int) -> Path | None:
    """The live segment of the engine with this process id, if there is one."""
    return next((f.path for f in find() if f.live and f.pid == pid), None)


def prune() -> list[Path]:
    """Remove the segments whose engine is gone; returns what was removed."""
    gone = [f.path for f in find() if f.status is not None and not f.status.alive and not f.drainer]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone
