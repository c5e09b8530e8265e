"""The verb `report`: a question that everybody asks, with what its answer stands for first."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..store import arguments
from ..store.errors import Exit, Refused, Usage
from .formats import format_asked

if TYPE_CHECKING:
    from .report import Answer
    from .session import Session

FORMATS = ("text", "json", "parquet")
ENDINGS = {".txt": "text", ".json": "json", ".parquet": "parquet"}
"""A report's file by its ending. It is no list of rows alone: csv would lose what they stand for."""


class Report:
    """Answer what everybody asks: overview, classes, requests, steps, waits, workers or losses.

    Every report says first what it stands for: selection, coverage, loss. Counts and quantiles are given as bounds
    between which the truth lies whatever was lost: "4,260 … 5,663", "≥ 2,461". --from and --to take device time in ns,
    +1.5s since the first event, or UTC by the host's clock: 2026-03-01T12:00:00.5Z.
    """

    name = "report"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        parser.add_argument("report", nargs="?", default="overview", metavar="NAME", help="default: overview")
        parser.add_argument("trace", type=Path, metavar="TRACE", help="a NAME.mscope directory, also while it grows")
        parser.add_argument("--from", dest="begin", metavar="TIME", help="look at what lasts beyond this time")
        parser.add_argument("--to", dest="end", metavar="TIME", help="look at what begins before this time")
        parser.add_argument("-f", "--format", choices=FORMATS, help="default: by -o's ending, else text")
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report to FILE")
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
        parser.add_argument("--limit", type=arguments.rows, metavar="ROWS", help="at most so many rows; text: 40")
        parser.add_argument("--sql", action="store_true", help="print the query instead of running it")
        parser.add_argument("--threads", type=arguments.threads, metavar="N", help="default: one per core")
        parser.add_argument("--memory", metavar="SIZE", help="memory before spilling to disk; default: half of it all")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        from ..store.new_file import check_free, file_appears
        from .report import ask, report_named
        from .session import Session

        _in_order(args)
        chosen = report_named(args.report)
        form = args.format or format_asked(args.output, ENDINGS, "text")
        if args.sql:
            print(chosen.sql)
            return Exit.DONE
        if args.output is not None:
            check_free(args.output, args.force)
            if args.output.resolve().is_relative_to(args.trace.resolve()):
                raise Refused(f"cannot write {args.output}", "it lies in the trace", "name a place outside it")
        elif form == "parquet" and sys.stdout.isatty():
            raise Usage("cannot write parquet to a terminal", "it is binary", "give -o FILE or send it through a pipe")
        with Session.open(args.trace, threads=args.threads, memory_limit=args.memory) as session:
            _look(session, args.begin, args.end)
            answer = ask(session, args.report)
        content = _rendered(answer, form, args.limit)
        if args.output is None:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return Exit.DONE
        with file_appears(args.output, force=args.force) as out:
            out.write(content)
        print(f"wrote the report {args.report} to {args.output}", file=sys.stderr)
        return Exit.DONE


def _in_order(args: argparse.Namespace) -> None:
    """Say what is wrong where NAME and TRACE changed places, or one of them is missing."""
    from .report import reports

    given = Path(args.report)
    if args.report not in reports() and (given.suffix == ".mscope" or given.is_dir()):
        name = str(args.trace) if str(args.trace) in reports() else "NAME"
        todo = f"say megascope report {name} {args.report}"
        raise Usage(f"cannot report {args.report}", "the report's name comes before the trace", todo)
    if str(args.trace) in reports() and not args.trace.exists():
        raise Usage(f"cannot report {args.trace}", "no trace is named", f"say megascope report {args.trace} TRACE")


def _look(session: Session, begin: str | None, end: str | None) -> None:
    from .when import moment

    if begin is None and end is None:
        return
    span, fits = session.span(), session.trace.manifest["clock"]["fits"]
    moments = [None if text is None else moment(text, span and span[0], fits) for text in (begin, end)]
    for text, found in zip((begin, end), moments, strict=True):
        if found is not None and found.error_ns != 0:
            how = "its error is not bounded" if found.error_ns is None else f"within {found.error_ns:,} ns"
            print(f"{text} is {found.t} ns of device time ({how})", file=sys.stderr)
    session.window(*(None if m is None else m.t for m in moments))


def _rendered(answer: Answer, form: str, limit: int | None) -> bytes:
    from .report_text import report_json, report_parquet, report_text

    if form == "parquet":
        return report_parquet(answer, limit=limit)
    if form == "json":
        return report_json(answer, limit=limit).encode()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return report_text(answer, limit=limit, width=width).encode()
