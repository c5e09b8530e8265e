"""The programs of a recording: those that it attached, for as long as it lasts, and all that the trace tells of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..store.errors import MegascopeError, Refused
from ..store.trace import TraceWriter
from . import attaching
from .accounts import Accounts
from .attaching import Attached
from .attachments import Attachments, recorder
from .marks import Around
from .programs.execution import Limits
from .programs.program import Program
from .segment.mailbox import Unanswered
from .segment.reader import SegmentReader
from .triggers import Triggers

if TYPE_CHECKING:
    from .live_answers import LiveAnswers

TELL_S = 0.1
"""Between two changes of the manifest, at least."""


class RecordedPrograms:
    """raw: the recorder takes every exported hook, as a program of its own.

    rows: the programs but the recorder, as the manifest tells of them. left: names of those of this recording that
    could not be detached in the end. idle: what to do while an engine is waited for.
    """

    def __init__(
        self,
        segment: SegmentReader,
        writer: TraceWriter,
        accounts: Accounts,
        triggers: Triggers,
        answers: LiveAnswers | None,
        *,
        raw: bool,
        idle: Callable[[], None],
    ) -> None:
        self.attachments = Attachments(segment)
        self.rows: list[dict[str, Any]] = []
        self.left: list[str] = []
        self._segment, self._writer, self._accounts = segment, writer, accounts
        self._triggers, self._answers, self._idle = triggers, answers, idle
        self._recorders = recorders(raw)
        self._ours: list[str] = []
        self._untold = False
        self._tell_at = 0.0

    def follow(self) -> None:
        """Tell of programs that have come or gone: at once, but of changes that follow each other closely together.

        A manifest with thousands of programs takes its time, and whoever attaches waits until this recording has read
        the last change.
        """
        rows = self.attachments.follow(self._accounts.closed_of)
        if rows is not None:
            self.rows, self._untold = rows, True
            self._triggers.follow(rows)
            if self._answers is not None:
                self._answers.follow(rows, self.attachments.programs)
        if time.monotonic() >= self._tell_at:
            self.tell()

    def tell(self) -> None:
        """Put into the manifest what it does not tell of yet."""
        if not self._untold:
            return
        begun = time.monotonic()
        self._writer.update(programs=self._recorders + self.rows)
        self._untold = False
        done = time.monotonic()
        self._tell_at = done + max(TELL_S, 10 * (done - begun))

    def attach(self, program: Program, limits: Limits | None = None) -> Attached:
        """Attach a program for as long as this recording lasts. Raises as `attaching.attach`."""
        self.follow()
        try:
            done = attaching.attach(self._segment, program, limits, idle=self._idle)
        except Unanswered:
            self._ours.append(program.name)  # it may run after all
            raise
        self._ours.append(program.name)
        return done

    def attach_all(
        self, programs: Iterable[tuple[Program, Limits]], triggers: Iterable[tuple[Program, Limits, Around]]
    ) -> None:
        """As `attach`; none stays if one cannot be attached."""
        try:
            for program, limits in programs:
                self.attach(program, limits)
            for program, limits, around in triggers:
                self._triggers.watch(program.name, around)
                self.attach(program, limits)
        except MegascopeError:
            self.leave()
            raise

    def leave(self) -> None:
        """Detach what this recording attached; programs that are gone already are none of its business.

        An engine that does not answer is asked once: what may run on there is `left`.
        """
        ours, self._ours = self._ours, []
        for i, name in enumerate(ours):
            try:
                attaching.detach(self._segment, name, idle=self._idle)
            except Refused:
                continue
            except MegascopeError:
                if self._segment.status().live:
                    self.left = ours[i:]
                return


def recorders(raw: bool) -> list[dict[str, Any]]:
    """What the manifest tells of the recorder."""
    return [recorder()] if raw else []
