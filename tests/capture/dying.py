"""A capture in a process of its own that kills itself at a given place of its loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megascope.capture.accounts import Accounts
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.exports import MapRingReader
from megascope.capture.segment.lease import Lease
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.summaries import SummaryReader
from megascope.capture.session import Session
from megascope.store.trace import TraceWriter

PLACES: dict[str, tuple[type, str]] = {
    "asked for its mask": (Lease, "record"),
    "took records": (SummaryReader, "take"),
    "took exports": (MapRingReader, "take"),
    "took rows": (RingReader, "take"),
    "freed blocks": (RingReader, "_free"),
    "booked coverage": (Accounts, "book"),
    "flushed": (TraceWriter, "flush"),
}
"""Where it dies: right after that call."""


def record_and_die(segment: Path, out: Path, place: str, times: int) -> None:
    """In the child: record, and be gone after so many calls at that place."""
    owner, name = PLACES[place]
    call: Callable[..., Any] = getattr(owner, name)
    left = times

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        result = call(*args, **kwargs)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    with SegmentReader.open(segment, write=True) as reader:
        Session(reader, out).run(stopped=lambda: False)
