"""The verb `check`: is a trace whole, and can it be made whole?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .errors import Exit, Refused


class Check:
    """Say whether a trace is whole, and repair it.

    Reads every part, the spool and the manifest: checksums, schemas, order, each (rank, worker, seq) once, and the
    identities of coverage. --repair seals what a killed recording left in its spool, derives tasks, waits and tiles
    where they are missing or damaged, and lists what cannot be read.
    Findings go to stdout. Exit code: 0 sound, 4 complete but with losses beyond repair, 3 not readable.
    """

    name = "check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, metavar="TRACE", help="a NAME.mscope directory")
        parser.add_argument("--repair", action="store_true", help="seal what can be read, put aside what cannot")
        parser.add_argument("-q", "--quiet", action="store_true", help="findings only")

    def run(self, args: argparse.Namespace) -> int:
        from .check import check, repair

        if not args.trace.is_dir():
            raise Refused(f"cannot check {args.trace}", "there is no such directory", "give the path of a NAME.mscope")
        progress = _Progress(args.trace) if sys.stderr.isatty() and not args.quiet else None
        report = (repair if args.repair else check)(args.trace, progress=progress)
        if progress:
            progress.close()
        for f in (*report.findings, *report.remarks):
            print(f"{f.severity}: {f.file + ': ' if f.file else ''}{f.what}{'; ' + f.todo if f.todo else ''}")
        if not args.quiet:
            rows = ", ".join(f"{n:,} {stream}" for stream, n in report.rows.items() if n)
            verdict = "sound" if report.clean else "not whole"
            print(f"{args.trace}: {report.state}, {verdict}: {rows or 'no rows'}", file=sys.stderr)
        if report.state == "unreadable":
            return Exit.REFUSED
        return Exit.DONE if report.clean else Exit.INCOMPLETE


class _Progress:
    """A line on the terminal that says what is being read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __call__(self, done: int, total: int) -> None:
        share = done / total if total else 1.0
        print(f"\r\x1b[Kchecking {self.trace}: {share:4.0%}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
