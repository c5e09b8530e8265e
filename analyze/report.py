"""Reports: questions that everybody asks, one .sql file each, with a header like a view's.

    -- meaning: What it answers …
    -- portable: yes                              keeps to the SQL that DuckDB, Spark and DataFusion share
    -- column: class VARCHAR: name of …           what each column is; STRUCT for bounds, see `analyze.bounds`

A report is an ordinary query, admitted like any other, so that whoever wants something else can begin with its text.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from ..store.errors import Refused, Usage
from .catalogue import ViewColumn, parse_column, parse_header, sql_files

if TYPE_CHECKING:
    from .session import Session

ORDER = ("overview", "classes", "requests", "steps", "waits", "workers", "losses")


@dataclass(frozen=True)
class Report:
    """One report: `sql` is what is asked, `columns` what comes out."""

    name: str
    meaning: str
    columns: tuple[ViewColumn, ...]
    portable: bool
    sql: str


@dataclass(frozen=True)
class Answer:
    """What a report found: `lines` say what the rows stand for, `window` is [begin, end) in ns, if there are events."""

    report: Report
    rows: pa.Table
    lines: list[str]
    window: tuple[int, int] | None


def parse_report(name: str, text: str) -> Report:
    """Read one report's file. Raises ValueError for a header of another form."""
    said, sql = parse_header(name, text, ("meaning", "portable", "column"))
    columns = tuple(parse_column(name, column) for column in said["column"])
    return Report(name, said["meaning"][0], columns, said.get("portable") == ["yes"], sql)


@cache
def reports() -> dict[str, Report]:
    """Every report by name."""
    found = sql_files("reports")
    names = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: parse_report(name, found[name]) for name in names}


def report_named(name: str) -> Report:
    """The report of that name. Raises Usage when there is none."""
    known = reports()
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        todo = f"did you mean {close[0]}?" if close else f"the reports are {', '.join(known)}"
        raise Usage(f"cannot report {name}", "there is no such report", todo)
    return known[name]


def ask(session: Session, name: str, *, timeout: float | None = None) -> Answer:
    """Run a report in the session's window.

    Raises Usage for a name that is no report, otherwise like `Session.run`.
    """
    report = report_named(name)
    with session.run(report.sql, timeout=timeout) as result:
        rows = result.read_all()
        views = result.views
    declared = [c.name for c in report.columns]
    if rows.column_names != declared:
        raise Refused(f"cannot report {name}", "the trace's columns are not those it declares", "run megascope check")
    return Answer(report, rows, _together(session.coverage_lines(views)), session.looked_at())


def _together(lines: list[str]) -> list[str]:
    """Views of which the same is to be said on one line."""
    said: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.partition(": ")
        said.setdefault(rest, []).append(name)
    return [f"{', '.join(names)}: {rest}" for rest, names in said.items()]
