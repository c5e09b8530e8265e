"""A capture in a process of its own, to be killed: imports little, so that it is soon at work."""

from __future__ import annotations

from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from megascope.capture.segment.reader import SegmentReader
from megascope.capture.session import Session
from megascope.store.trace import TraceWriter


def record_and_acknowledge(segment: Path, out: Path, acknowledged: Synchronized[int]) -> None:
    """In the child: record, and say after every flush how many rows a SIGKILL may not take away any more."""
    flush = TraceWriter.flush

    def counted(self: TraceWriter) -> None:
        appended = int(session.accounts.seen_rows.sum())
        flush(self)
        acknowledged.value = appended

    TraceWriter.flush = counted  # type: ignore[method-assign]
    with SegmentReader.open(segment, write=True) as reader:
        session = Session(reader, out)
        session.run(stopped=lambda: False)
