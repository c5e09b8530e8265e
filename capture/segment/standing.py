"""What is so of an engine, for people: that it runs is not all, where its process is stopped or its rings are full."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass

from .process import alive, named, stopped
from .reader import SegmentReader
from .words import WORD, HostStatus

SILENT_S = 2.0
"""An engine of which nothing has been heard for so long does not just run."""


@dataclass(frozen=True)
class Standing:
    """What an engine does, in a few words; why it does not go on, and what to do about it (empty where it does).

    live: it has not ended.
    """

    text: str
    why: str = ""
    todo: str = ""
    live: bool = True

    @property
    def told(self) -> str:
        """Why it does not go on and what to do about it, in one line; empty where nothing keeps it."""
        return f"{self.text}: {self.why}" + (f"; {self.todo}" if self.todo else "") if self.why else ""


def standing(segment: SegmentReader) -> Standing:
    """One look at a segment. Raises Truncated for one that was cut short."""
    lay, status = segment.layout, segment.status()
    if not status.live:
        return Standing(status.text, live=False)
    if stopped(lay.engine_pid, lay.engine_start):
        why = f"its process {lay.engine_pid} is stopped, by a signal or a debugger"
        return Standing("stopped", why, f"kill -CONT {lay.engine_pid} lets it go on")
    since = int(segment.words(lay.status_offset + HostStatus.WAITS_SINCE * WORD, 1)[0])
    if since and (found := _waits(segment, since)) is not None:
        return found
    silent = (time.time_ns() - status.heartbeat_ns) / 1e9
    if silent > SILENT_S:
        return Standing("silent", f"nothing has been heard of it for {silent:,.0f} s")
    return Standing(status.text)


def _waits(segment: SegmentReader, since_ns: int) -> Standing | None:
    """It waits for room. None where somebody makes it: an engine of policy `wait` goes at its recorder's pace."""
    pid, start = segment.lease()
    waited = max(0.0, (time.time_ns() - since_ns) / 1e9)
    full = f"its rings have been full for {waited:,.0f} s (policy wait)"
    if stopped(pid, start):
        why = f"{full}, and {named(pid)}, which records it, is stopped"
        return Standing("waits for its recorder", why, f"kill -CONT {pid} lets that go on")
    if alive(pid, start):
        if waited < SILENT_S:
            return None
        return Standing("waits for its recorder", f"{full}: {named(pid)}, which records it, makes no room")
    who = f"its recorder, process {pid}, is gone" if pid else "nobody records it"
    todo = f"megascope capture {shlex.quote(str(segment.path))} lets it go on"
    return Standing("waits for a recorder", f"{full} and {who}", todo)
