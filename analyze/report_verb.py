"""The verb `report`: a question that everybody asks, with what its answer stands for first."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.errors import Exit, Refused, Usage

if TYPE_CHECKING:
    from .report import Answer
    from .session import Session

TEXT_ROWS = 40
"""Rows of a report as text, unless --limit says otherwise; json and parquet are whole."""


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
        parser.add_argument("-f", "--format", choices=("text", "json", "parquet"), help="default: by -o's ending, else text")
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the report to FILE")
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
        parser.add_argument("--limit", type=_rows, metavar="ROWS", help=f"at most so many rows; text: {TEXT_ROWS}")
        parser.add_argument("--sql", action="store_true", help="print the query instead of running it")
        parser.add_argument("--threads", type=int, metavar="N", help="default: one per core")
        parser.add_argument("--memory", metavar="SIZE", help="memory before spilling to disk; default: half of it all")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        from .output import check_free, file_appears
        from .report import ask, report_named
        from .session import Session

        chosen = report_named(args.report)
        form = args.format or _form_of(args.output)
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .bounds import readable
    from .grid import grid
    from .text import encoded

    report = answer.report
    rows = answer.rows if limit is None else answer.rows.slice(0, limit)
    if form == "text":
        shown = answer.rows.slice(0, TEXT_ROWS if limit is None else limit)
        laid = grid(readable(shown), shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        lines = [f"{report.name}: {report.meaning}", *_window_line(answer), *answer.lines, "", *laid.lines]
        if shown.num_rows < answer.rows.num_rows:
            lines.append(f">{shown.num_rows:,} of {answer.rows.num_rows:,} rows: --limit gives more")
        if laid.left_out:
            lines.append(f"no room for {', '.join(laid.left_out)}")
        return "".join(f"{line}\n" for line in lines).encode()
    about = {
        "report": report.name, "meaning": report.meaning, "window": answer.window, "stands_for": answer.lines,
        "columns": {c.name: {"unit": c.unit, "meaning": c.meaning} for c in report.columns},
    }  # fmt: skip
    if form == "json":
        keys = encoded(pa.array(rows.column_names, pa.string()))
        columns = [encoded(column.combine_chunks()) for column in rows.combine_chunks().columns]
        texts = ["{" + ", ".join(f"{k}: {v}" for k, v in zip(keys, row, strict=True)) + "}" for row in zip(*columns, strict=True)]
        body = ",\n".join(f"  {text}" for text in texts)
        head = json.dumps(about, ensure_ascii=False, indent=1).removesuffix("\n}")
        return f'{head},\n "rows": [\n{body}\n]}}\n'.encode()
    sink = pa.BufferOutputStream()
    told = rows.replace_schema_metadata({"megascope.report": json.dumps(about, ensure_ascii=False)})
    pq.write_table(told, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _window_line(answer: Answer) -> list[str]:
    if answer.window is None:
        return ["window: the trace has no events"]
    begin, end = answer.window
    return [f"window: {(end - begin) / 1e6:,.3f} ms of device time, from {begin} to {end} ns"]


def _form_of(path: Path | None) -> str:
    endings = {".json": "json", ".parquet": "parquet"}
    return endings.get(path.suffix.lower(), "text") if path else "text"


def _rows(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value
