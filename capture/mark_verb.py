"""The verb that puts a note into a recording: mark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..store.errors import Exit, Refused, Usage
from . import control
from .durations import DURATION, duration


class Mark:
    """Put a note into the trace of an engine that is being recorded, at the engine's present time.

    Any process may do so: whoever records takes it. It is a row of the table marks. Where a workbench (megascope tui)
    records, for itself alone, the mark goes with it, and that is said. With --keep the rows around it are
    kept also by a rolling recording (capture --keep).
    """

    name = "mark"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("text", metavar="TEXT", help="what to say, up to 500 characters")
        parser.add_argument("segment", nargs="?", type=Path, help="a live segment (default: the one live engine)")
        keep = "keep the rows so long before and after it"
        parser.add_argument("--keep", type=DURATION, nargs="?", const=duration("5s"), metavar="5s", help=keep)

    def run(self, args: argparse.Namespace) -> int:
        from .marking import Note, send
        from .segment.process import named
        from .segment.reader import SegmentReader

        if args.segment is None and control.is_segment(args.text):
            raise Usage("cannot mark", f"{args.text} is a segment, and no text is given", "megascope mark TEXT SEGMENT")
        segment = args.segment or control.only_live()
        with SegmentReader.open(segment) as reader:
            status = reader.status()
        if not status.live:
            raise Refused(
                f"cannot mark {segment}", f"the engine has {status.text}", "marks are made while it is recorded"
            )
        taken = send(segment, Note(args.text, args.keep, args.keep))
        kept = ""
        if args.keep is not None:
            kept = "; no rows are kept for it: the budget of pinned rows or the disk's is spent, or there are none yet"
            if taken.t_from is not None and taken.t_to is not None:
                kept = f"; rows from {taken.t_from} to {taken.t_to} ns are kept"
        print(f"mark {taken.mark} at {taken.t} ns in {taken.trace}{kept}", file=sys.stderr)
        if taken.goes_with:
            who = named(taken.goes_with)
            print(f"this trace is temporary: with {who}, which records it, the mark is gone too", file=sys.stderr)
            print(f"end that, start megascope capture {segment}, and mark again to keep it", file=sys.stderr)
        return Exit.DONE
