"""What the Monitors screen asks of engines, the compiler and the verifier: all of it blocks, so none on its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from textual.message import Message

from ..capture import control
from ..store.errors import MegascopeError
from ..store.scratch import Scratch
from .attached import Program

if TYPE_CHECKING:
    from ..capture.control import MapRecorder

TABLES_S = 2.0
"""The names of a target are read again after so long at the earliest: batches of requests are added while it runs."""


class Looked(Message):
    """A look at a live engine is done: its programs, or why there are none to see."""

    def __init__(self, found: control.Found, watched: control.Watched | None, error: str, changes: int) -> None:
        """changes: how many changes had been asked for when it began."""
        super().__init__()
        self.found, self.watched, self.error, self.changes = found, watched, error, changes


class Engine(Message):
    """The live engine that the trace is being recorded from; None: not found."""

    def __init__(self, segment: Path | None) -> None:
        super().__init__()
        self.segment = segment


class Said(Message):
    """What the verifier says of a text."""

    def __init__(self, text: str, verdict: control.Judged | control.Rejection) -> None:
        super().__init__()
        self.text, self.verdict = text, verdict


class Known(Message):
    """What is known of programs that others attached, by hash; None: their code is not to be had."""

    def __init__(self, judged: Mapping[str, control.Judged | None]) -> None:
        super().__init__()
        self.judged = judged


class Changed(Message):
    """A program was attached or detached, or why not. name: the program to look at."""

    def __init__(self, told: str, *, name: str = "", error: bool = False) -> None:
        super().__init__()
        self.told, self.name, self.error = told, name, error


class Recording(Message):
    """The maps of a live engine are being recorded from now on, or why not."""

    def __init__(self, out: Path | None, error: str) -> None:
        super().__init__()
        self.out, self.error = out, error


class EngineSide:
    """Blocking calls. Each gives the message that tells the screen; each may be on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: tuple[Path, float, Mapping[str, pa.Table] | None] | None = None
        self._recorder: MapRecorder | None = None
        self._folder: Scratch | None = None

    def look(self, segment: Path, changes: int) -> Looked:
        """The programs of an engine."""
        found = control.look(segment)
        try:
            return Looked(found, control.programs(segment), found.problem, changes)
        except MegascopeError as error:
            return Looked(found, None, str(error), changes)

    def find(self, pid: int) -> Engine:
        """The engine of a process."""
        try:
            return Engine(control.segment_of(pid) if pid else None)
        except MegascopeError:
            return Engine(None)

    def judge(self, text: str, target: Path | None, name: str) -> Said:
        """Compile and verify a query. target: trace or segment whose names it uses."""
        return Said(text, control.judge(text, self.tables(target), name))

    def know(self, programs: Sequence[Program], running: Sequence[control.Running], target: Path | None) -> Known:
        """What is to be known of programs: from the code that the engine runs, else by name, source and hash."""
        tables = self.tables(target)
        code = {r.program.hash: r.program for r in running if r.program is not None}
        out: dict[str, control.Judged | None] = {}
        for p in programs:
            found = code.get(p.hash)
            out[p.hash] = (
                control.of_program(found, tables)
                if found is not None
                else control.of_record(p.name, p.source, p.hash, tables)
            )
        return Known(out)

    def attach(self, segment: Path, text: str, name: str, *, replace: bool) -> Changed:
        """Attach a query to a live engine."""
        try:
            done = control.attach(segment, text, name=name, query=True, replace=replace)
        except MegascopeError as error:
            return Changed(str(error), error=True)
        what = "replaced" if replace else "attached"
        return Changed(f"{what} {name} (program {done.program}) in {done.took_s * 1e3:.1f} ms", name=name)

    def detach(self, segment: Path, name: str) -> Changed:
        """Detach a program from a live engine."""
        try:
            done = control.detach(segment, name)
        except MegascopeError as error:
            return Changed(str(error), error=True)
        return Changed(f"detached {name} in {done.took_s * 1e3:.1f} ms; what its maps held is exported")

    def record(self, segment: Path) -> Recording:
        """Record the maps of a live engine for as long as the screen is there."""
        if self._recorder is not None and self._recorder.running:
            return Recording(None, "the maps are being recorded already")
        try:
            if self._folder is None:
                self._folder = Scratch("maps")
            out = self._folder.path / f"{segment.stem}.mscope"
            self._recorder = control.record_maps(segment, out)
        except MegascopeError as error:
            return Recording(None, str(error))
        return Recording(out, "")

    def tables(self, target: Path | None) -> Mapping[str, pa.Table] | None:
        """The side tables of a target; None where it cannot be read: then names must be numbers."""
        if target is None:
            return None
        with self._lock:
            held = self._tables
            if held is None or held[0] != target or time.monotonic() - held[1] > TABLES_S:
                try:
                    found: Mapping[str, pa.Table] | None = control.tables_of(target)
                except MegascopeError:
                    found = None
                held = self._tables = (target, time.monotonic(), found)
            return held[2]

    def close(self) -> None:
        """End the recording, and remove it."""
        if self._recorder is not None:
            self._recorder.stop()
        if self._folder is not None:
            self._folder.remove()
