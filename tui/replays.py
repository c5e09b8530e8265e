"""Queries replayed over a recording: each answer is a small trace of its own, kept for as long as the screen is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from ..analyze.session import Session
from ..capture import control
from ..store.errors import MegascopeError
from ..store.scratch import Scratch
from .attached import PROGRAMS, Program, of_trace
from .database import Database, Posted, Question
from .literals import fill
from .times import count, share

if TYPE_CHECKING:
    from ..capture.control import Replayed

MEMORY = "512MB"


class Replied(Message):
    """The trace of a replay has answered."""

    def __init__(self, posted: Posted) -> None:
        super().__init__()
        self.posted = posted


class Replaying(Message):
    """A replay goes on, is done, or has failed."""

    def __init__(self, told: str, program: Program | None = None, *, error: bool = False) -> None:
        super().__init__()
        self.told, self.program, self.error = told, program, error


class Replays:
    """The replays of one screen, the newest last."""

    def __init__(self, post: Callable[[Message], object]) -> None:
        """post: is given messages, from other threads."""
        self.stop = threading.Event()
        self.database = Database(self._session, self._reply, "replay")
        self._post = post
        self._traces: dict[str, Path] = {}
        self._folder: Scratch | None = None
        self._open: Path | None = None

    def run(self, recorded: Path, query: str, name: str) -> Replaying:
        """Replay a query, on any thread but the screen's."""
        self.stop.clear()

        def progress(rows: int, of: int) -> None:
            self._post(Replaying(f"replaying {name}: {share(rows, of)} of {count(of)} rows; esc stops it"))

        try:
            if self._folder is None:
                self._folder = Scratch("replays")
            # A name that was taken before may be open still.
            out = self._folder.path / f"{len(self._traces)}.mscope"
            done = control.replay(recorded, query, out, name=name, progress=progress, stopped=self.stop.is_set)
            with Session.open(out, threads=1, memory_limit=MEMORY) as session, session.run(fill(PROGRAMS)) as result:
                program = of_trace(result.read_all().to_pylist()[0], "replayed")
        except MegascopeError as error:
            return Replaying(str(error), error=True)
        self._traces[program.key] = out
        return Replaying(_told(done, program.open), program)

    def trace_of(self, program: Program | None) -> Path | None:
        """Where the answer of a replayed program stands."""
        return self._traces.get(program.key) if program is not None else None

    def ask(self, trace: Path, question: Question) -> None:
        """Ask the trace of a replay."""
        if self._open is None:
            self.database.start()
        if trace != self._open:
            self._open = trace
            self.database.reopen()
        self.database.ask(question)

    def close(self) -> None:
        """End what runs, and remove what was written."""
        self.stop.set()
        if self._open is not None:
            self.database.close()
        if self._folder is not None:
            self._folder.remove()

    def _reply(self, posted: Posted) -> None:
        self._post(Replied(posted))

    def _session(self) -> Session:
        assert self._open is not None
        return Session.open(self._open, threads=1, memory_limit=MEMORY)


def _told(done: Replayed, still_open: int) -> str:
    """What came of a replay. still_open: intervals of it of which it is not known what was eligible."""
    told = f"replayed {done.name} over {count(done.rows)} rows"
    if done.selection != "all":
        told += f" of {done.selection}: counts are of that sample"
    if done.missing:
        told += f"; the recording lost {count(done.missing)} of {count(done.eligible)} events at its hooks"
        told += ", in closed intervals" if still_open else ""
    if still_open:
        told += "; what it lost after its last closed interval is unknown"
    return told
