"""The verb that records: capture."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ..store import arguments, heap, signals
from ..store.errors import Exit, Usage
from .attach_verbs import add_programs, budget
from .durations import DURATION
from .live_line import LiveLine, short
from .marks import Around
from .programs.verbs import constants

if TYPE_CHECKING:
    from .progress import Progress, Rolled

_SEALING_S = 2.0
"""After so long the user is told why the end takes time."""
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size(text: str) -> int:
    """'500M' → 500,000,000 bytes. Raises ValueError for anything else than a number and k, M, G or T."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    value = int(float(text[: len(text) - len(unit)]) * _SIZES[unit]) if unit in _SIZES else 0
    if value <= 0:
        raise ValueError(text)
    return value


_SIZE = arguments.option(size, "a number of bytes such as 500M or 2G")


class Capture:
    """Record an engine into a trace.

    TARGET is demo[:k=v,…] (the host engine), cuda[:k=v,…] (the reference megakernel) or a segment; it may be left out
    if one engine is live. After `--`, a command is run that makes its own segment where $MEGASCOPE_SEGMENT says.
    Ctrl-C ends the recording in order, and so do SIGTERM and closing the terminal: all that was recorded is sealed.

    The standard monitors (docs/monitors.md) are attached for as long as the recording lasts, unless --program none is
    given. --program attaches others beside them: an object of clang's, a query, or with none a standard monitor by its
    name. What maps hold is in the tables maps.PROGRAM_MAP; the rows that programs emit are among the events, marked as
    escalated. Raw rows of every hook are recorded beside them, unless --no-raw is given.

    --keep makes it a flight recorder (docs/flight-recorder.md): raw rows older than that are retired and counted, and
    summaries stay. --on attaches a trigger; whenever it emits, that is a row of marks, and the rows from --before
    before to --after after it are never retired.
    """

    name = "capture"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("target", nargs="?", metavar="TARGET", help="demo[:k=v,…], cuda[:k=v,…] or a segment")
        parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="trace to write (default: megascope.mscope)")
        parser.add_argument("--force", action="store_true", help="replace a trace that stands at OUT")
        parser.add_argument("--seconds", type=arguments.seconds, metavar="S", help="end the recording after so long")
        budget = "disk budget (k, M, G, T): raw rows stop there (with --keep: the oldest go early), summaries go on"
        parser.add_argument("--max-bytes", type=_SIZE, metavar="N", help=budget)
        keep = "a rolling recording: keep the raw rows of the last 30s, 10m, 2h … of the engine's time"
        parser.add_argument("--keep", type=DURATION, metavar="T", help=keep)
        on = "keep the rows around every emit() of it for good; may be given several times"
        parser.add_argument("--on", action="append", default=[], metavar="QUERY", help=on)
        parser.add_argument("--before", type=DURATION, metavar="T", help="how long before it (default: 5s)")
        parser.add_argument("--after", type=DURATION, metavar="T", help="how long after it (default: 5s)")
        loss = "exit with 4 if more of the events was lost"
        parser.add_argument("--max-loss", type=arguments.percent, metavar="PERCENT", help=loss)
        add_programs(parser, "--program", "; none: without the standard monitors")
        raw = "record no rows but those that programs emit"
        parser.add_argument("--no-raw", action="store_false", dest="raw", help=raw)
        parser.add_argument("-q", "--quiet", action="store_true", help="no live line")

    def run(self, args: argparse.Namespace) -> int:
        from ..store.directory import check_room
        from . import live_answers, session, target, wanted
        from .segment.lease import Lease
        from .segment.reader import SegmentReader

        heap.share()
        out = self._out(args)
        self._check_budget(args)
        check_room(out, args.force)
        limits, values, around = budget(args), constants(args), self._around(args)
        with signals.noted() as stop:
            engine = target.start(args.target, args.command)
            try:
                engine.wait_for_segment(120.0, stop.is_set, _note)
                with SegmentReader.open(engine.path, write=True) as segment, Lease(segment) as lease:
                    programs, queries, notes = wanted.for_engine(segment, args.program, values, limits)
                    for text in notes:
                        _note(text)
                    watched = [(*p, around) for p in wanted.triggers(segment, args.on, limits)]
                    line = LiveLine(segment.layout.name)

                    def say(text: str) -> None:
                        line.close()
                        print(text, end="", flush=True)

                    answers = live_answers.LiveAnswers(segment, queries, say, _note)
                    recording = session.Session(
                        segment,
                        out,
                        force=args.force,
                        max_bytes=args.max_bytes,
                        raw=args.raw,
                        keep_ns=args.keep,
                        answers=answers,
                        lease=lease,
                    )

                    def tell_sealing() -> None:
                        line.close()
                        _note("sealing what was recorded")

                    sealing = threading.Timer(_SEALING_S, tell_sealing)
                    sealing.daemon = True
                    try:
                        recording.attach_all(programs, watched)
                        reason = recording.run(
                            stopped=stop.is_set,
                            progress=(lambda _: None) if args.quiet else line,
                            seconds=args.seconds,
                            stop_engine=engine.ours,
                            ending=sealing.start,
                        )
                    finally:
                        sealing.cancel()
                        line.close()
                        answers.close()
                        recording.release()
                        if recording.programs.left:
                            names = ", ".join(recording.programs.left)
                            why = f"the engine did not answer, and may still run {names}"
                            _note(f"{why}: megascope programs {engine.path} shows it, megascope detach ends it")
                    last, rolled = recording.progress(), recording.rolled()
            except BaseException:
                engine.abandon()
                raise
            finally:
                engine.end()
        if recording.taken_over:
            _note(recording.taken_over)
        # Only now: whoever reads them slowly holds up nobody, and Ctrl-C leaves the rest unsaid.
        answers.join()
        return self._report(args, out, reason, last, rolled, stop)

    @staticmethod
    def _around(args: argparse.Namespace) -> Around:
        what = "cannot capture"
        if args.keep == 0:
            raise Usage(what, "--keep 0 keeps nothing", "say --keep 10s, or --no-raw for no raw rows")
        if not args.on and (args.before is not None or args.after is not None):
            raise Usage(what, "--before and --after say what is kept around a trigger", "say --on QUERY too")
        around = Around(*(5 * 10**9 if t is None else t for t in (args.before, args.after)))
        if args.before is None and args.keep is not None:
            around = Around(min(around.before, args.keep), around.after)
        if args.keep is not None and around.before > args.keep:
            raise Usage(what, "rows from --before are retired when --keep is over", "let --keep be at least --before")
        return around

    @staticmethod
    def _check_budget(args: argparse.Namespace) -> None:
        from ..store.budget import MEGA, least

        if args.max_bytes is not None and args.max_bytes < least():
            why = f"--max-bytes {args.max_bytes:,} has no room for raw rows"
            raise Usage("cannot capture", why, f"say --max-bytes {least() // MEGA}M or more")

    @staticmethod
    def _out(args: argparse.Namespace) -> Path:
        out: Path = args.out or Path("megascope.mscope")
        if out.suffix != ".mscope":
            raise Usage("cannot capture", f"{out} does not end in .mscope", f"say -o {out.name}.mscope")
        return out

    @staticmethod
    def _report(
        args: argparse.Namespace, out: Path, reason: str, last: Progress, rolled: Rolled, stop: signals.Received
    ) -> int:
        said = {"ended": "the engine ended", "failed": "the engine failed", "died": "the engine died"}
        kept = last.rows - last.dropped - rolled.retired
        print(
            f"wrote {out}: {kept:,} rows, {short(last.bytes, 'B')}, lost {last.lost:,} ({last.loss_share:.2%}); "
            f"{said.get(reason, reason)} after {last.seconds:.1f} s",
            file=sys.stderr,
        )
        if last.dropped:
            why = (last.stopped or "disk_budget").replace("_", " ")
            _note(f"{last.dropped:,} raw rows were dropped for the {why}; summaries went on; see the loss table")
        if rolled.retired:
            early = f", {rolled.early:,} of them before their time for --max-bytes" if rolled.early else ""
            _note(f"{rolled.retired:,} raw rows were retired as the window moved on{early}; see the loss table")
        if rolled.marks:
            _note(f"{rolled.marks:,} {'mark' if rolled.marks == 1 else 'marks'}; see the table marks")
        _note(f"look: megascope report overview {out}, or megascope tui {out}")
        if reason in ("died", "failed", "truncated"):
            return Exit.INCOMPLETE
        if args.max_loss is not None and last.loss_share * 100 > args.max_loss:
            return Exit.INCOMPLETE
        return stop.code if stop.is_set() else Exit.DONE


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
