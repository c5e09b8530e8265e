"""The verbs `sql` and `schema`: arguments in, answer to standard output, what it stands for to standard error.

What answers is imported when a verb runs: the command line reads this module for `--help` of every other verb too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ..store import arguments
from ..store.errors import Exit, Refused, Usage
from .formats import BINARY, FORMATS, format_asked

TABLE_ROWS = 1000
"""Rows of a table on a terminal, unless --limit says otherwise; files and other formats are whole."""


class Sql:
    """Ask a trace one question in SQL.

    QUERY is one SELECT or EXPLAIN in DuckDB's dialect, or - to read it from standard input; "SHOW TABLES" lists the
    views, "DESCRIBE events" a view's columns. It only reads, and only the trace. What the answer stands for
    (selection, coverage, loss) is printed to standard error.
    """

    name = "sql"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        parser.add_argument("trace", type=Path, metavar="TRACE", help="a NAME.mscope directory, also while it grows")
        parser.add_argument("query", metavar="QUERY", help="the SQL text, or -")
        parser.add_argument("-f", "--format", choices=FORMATS, help="default: by -o's ending, else table")
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the answer to FILE")
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
        limit = f"at most so many rows; table: {TABLE_ROWS}"
        parser.add_argument("--limit", type=arguments.rows, metavar="ROWS", help=limit)
        parser.add_argument("--timeout", type=arguments.seconds, metavar="S", help="give up after S seconds")
        parser.add_argument("--threads", type=arguments.threads, metavar="N", help="default: one per core")
        parser.add_argument("--memory", metavar="SIZE", help="memory before spilling to disk; default: half of it all")
        parser.add_argument("--allow-files", action="store_true", help="let the query read files, for your own use")
        parser.add_argument("-q", "--quiet", action="store_true", help="do not print coverage")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        from ..store.new_file import check_free
        from .output import write, write_file
        from .session import Session

        form = args.format or format_asked(args.output)
        query = sys.stdin.read() if args.query == "-" else args.query
        if args.output is not None:
            check_free(args.output, args.force)
            if args.output.resolve().is_relative_to(args.trace.resolve()):
                raise Refused(f"cannot write {args.output}", "it lies in the trace", "name a place outside it")
        elif form in BINARY and sys.stdout.isatty():
            raise Usage(f"cannot write {form} to a terminal", "it is binary", "give -o FILE or send it through a pipe")
        with Session.open(
            args.trace, threads=args.threads, memory_limit=args.memory, allow_files=args.allow_files
        ) as session:
            with session.run(query, timeout=args.timeout) as result:
                if args.output is not None:
                    written = write_file(result, form, args.output, force=args.force, limit=args.limit)
                else:
                    limit = TABLE_ROWS if form == "table" and args.limit is None else args.limit
                    written = write(result, form, sys.stdout.buffer, limit=limit, width=_width())
                    sys.stdout.buffer.flush()
            if written.more:
                _note(f">{written.rows:,} rows: the first {written.rows:,} are shown; --limit or -o FILE gives more")
            if written.left_out:
                _note(f"no room for {', '.join(written.left_out)}; select fewer columns or another --format")
            if not args.quiet:
                for line in session.coverage_lines(result.views):
                    _note(line)
            if args.output is not None:
                _note(f"wrote {written.rows:,} rows to {args.output}")
        return Exit.DONE


class Schema:
    """Show every view that SQL can ask, with its columns, their types, units and meaning. Needs no trace."""

    name = "schema"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        parser.add_argument("view", nargs="*", metavar="VIEW", help="only these")
        parser.add_argument("-f", "--format", choices=("text", "markdown", *FORMATS), default="text")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        from .output import write
        from .schema import chosen, schema_markdown, schema_table, schema_text

        chosen(args.view)
        if args.format in BINARY and sys.stdout.isatty():
            raise Usage(f"cannot write {args.format} to a terminal", "it is binary", "send it through a pipe")
        if args.format in ("text", "markdown"):
            render = schema_text if args.format == "text" else schema_markdown
            sys.stdout.buffer.write(render(args.view).encode())
        else:
            write(schema_table(args.view).to_reader(), args.format, sys.stdout.buffer, width=_width())
        sys.stdout.buffer.flush()
        return Exit.DONE


VERBS = (Sql, Schema)


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _width() -> int | None:
    """The terminal's width; none when the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
