"""Finding live engines, asking what they do, and attaching programs to them: needs no CUDA and no trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.errors import MegascopeError, Usage
from . import attaching
from .attaching import Attached, Running
from .judging import Judged, Rejection, Shape, judge, of_program, of_record
from .now import Look, now
from .programs.execution import UNLIMITED, Limits
from .programs.sources import tables_of, tables_of_segment
from .segment import slots
from .segment.layout import MAGIC
from .segment.process import alive
from .segment.reader import EngineStatus, SegmentReader
from .segment.standing import Standing, standing

if TYPE_CHECKING:
    from .map_recorder import MapRecorder
    from .replaying import Replayed

__all__ = [
    "SUFFIX",
    "UNLIMITED",
    "Attached",
    "Found",
    "Judged",
    "Look",
    "MapRecorder",
    "Rejection",
    "Replayed",
    "Running",
    "Shape",
    "Standing",
    "Watched",
    "attach",
    "detach",
    "directory",
    "find",
    "is_segment",
    "judge",
    "look",
    "now",
    "of_program",
    "of_record",
    "only_live",
    "programs",
    "prune",
    "record_maps",
    "replay",
    "segment_of",
    "tables_of",
]

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
    standing: Standing | None = None
    """what is so of it, for people"""

    @property
    def live(self) -> bool:
        return self.status is not None and self.status.live


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
                standing=standing(segment),
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


def is_segment(text: str) -> bool:
    """Whether a word of a command line names a segment, or a file called like one."""
    path = Path(text)
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return path.suffix == SUFFIX


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


@dataclass(frozen=True)
class Watched:
    """The programs of an engine, and what is left for more of them: arena in bytes."""

    programs: tuple[Running, ...]
    slots: int
    arena: int
    arena_used: int


def programs(path: Path) -> Watched:
    """The programs attached to the engine of the segment at `path`. Raises MegascopeError when it cannot be read."""
    with SegmentReader.open(path) as segment:
        if not slots.can_attach(segment):
            return Watched((), 0, 0, 0)
        said = slots.answer(segment)
        found = tuple(attaching.running(segment))
        return Watched(found, segment.layout.program_slots, said.arena, said.arena_used)


def attach(
    path: Path,
    what: str,
    constants: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    *,
    name: str | None = None,
    query: bool = False,
    replace: bool = False,
) -> Attached:
    """Attach an object, image or query to the engine of the segment at `path`.

    Raises Rejected for what the verifier refuses, Refused for what the engine does, Usage for what is neither file nor
    query, MegascopeError when nobody answers.
    """
    with SegmentReader.open(path, write=True) as segment:
        program = attaching.load(what, constants or {}, tables_of_segment(segment), name=name, query=query)
        return attaching.attach(segment, program, limits, replace=replace)


def detach(path: Path, name: str) -> Attached:
    """Detach the program of that name. Raises Refused when there is none, MegascopeError when nobody answers."""
    with SegmentReader.open(path, write=True) as segment:
        return attaching.detach(segment, name)


def record_maps(path: Path, out: Path) -> MapRecorder:
    """Record what the maps of an engine's programs hold, without raw events, until it is stopped. Raises as capture."""
    from .map_recorder import MapRecorder

    return MapRecorder(path, out)


def replay(
    recorded: Path,
    text: str,
    out: Path,
    *,
    name: str = "query",
    progress: Callable[[int, int], None] = lambda *_: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Run a query over a recording into the trace `out`; see `replaying`. progress: rows done, of how many."""
    from .replaying import replay as run

    return run(recorded, text, out, name=name, progress=lambda p: progress(p.rows, p.of), stopped=stopped)


def prune() -> list[Path]:
    """Remove the segments whose engine is gone; returns what was removed."""
    gone = [f.path for f in find() if f.status is not None and not f.status.alive and not f.drainer]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone
