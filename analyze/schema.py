"""What can be asked: every view with its columns, as a table, as text and as the reference in docs/sql.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from ..store.errors import Usage
from .catalogue import View, views
from .macro import macros
from .report import reports

SCHEMA = pa.schema(
    [
        pa.field("view", pa.string()),
        pa.field("column", pa.string()),
        pa.field("type", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("meaning", pa.string()),
    ]
)
_PORTABLE = " *Portable*: its text keeps to the SQL that DuckDB, Spark and DataFusion share."


def chosen(names: Sequence[str]) -> list[View]:
    """The views of these names, all of them for none.

    Raises Usage for a name that is no view.
    """
    known = views()
    for name in names:
        if name not in known:
            raise Usage(f"cannot show {name}", "there is no such view", f"the views are {', '.join(known)}")
    return [known[name] for name in names or known]


def schema_table(names: Sequence[str] = ()) -> pa.Table:
    """One row per view and column: view, column, type (DuckDB's name), unit, meaning."""
    rows = [
        {"view": view.name, "column": c.name, "type": c.type, "unit": c.unit, "meaning": c.meaning}
        for view in chosen(names)
        for c in view.columns
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def schema_text(names: Sequence[str] = ()) -> str:
    """For a terminal: each view with its meaning, then a column a line."""
    blocks = []
    for view in chosen(names):
        name_width = max(len(c.name) for c in view.columns)
        type_width = max(len(_typed(c.type, c.unit)) for c in view.columns)
        lines = [f"  {c.name:<{name_width}}  {_typed(c.type, c.unit):<{type_width}}  {c.meaning}" for c in view.columns]
        blocks.append(f"{view.name}: {view.meaning}\n" + "".join(f"{line}\n" for line in lines))
    if not names:
        blocks.append("Functions, besides DuckDB's own:\n")
        blocks += [f"{m.call}: {m.returns}\n  {m.meaning}\n" for m in macros().values()]
    return "\n".join(blocks)


def macros_markdown() -> str:
    """For docs/sql.md: a heading per macro."""
    return "\n".join(f"### {m.call}\n\n{_cell(m.meaning)} Gives {m.returns}.\n" for m in macros().values())


def reports_markdown() -> str:
    """For docs/sql.md: a heading and a table per report."""
    blocks = []
    for report in reports().values():
        lines = [f"### report {report.name}\n", "", f"{report.meaning}{_PORTABLE if report.portable else ''}\n", ""]
        lines += ["| column | type | meaning |\n", "|---|---|---|\n"]
        lines += [f"| `{c.name}` | {_typed(c.type, c.unit)} | {_cell(c.meaning)} |\n" for c in report.columns]
        blocks.append("".join(line or "\n" for line in lines))
    return "\n".join(blocks)


def schema_markdown(names: Sequence[str] = ()) -> str:
    """For docs/sql.md: a heading and a table per view."""
    blocks = []
    for view in chosen(names):
        lines = [f"### {view.name}\n", "", f"{view.meaning}\n", "", "| column | type | meaning |\n", "|---|---|---|\n"]
        for c in view.columns:
            name = f"`{c.name}`" + ("*" if c.added else "")
            lines.append(f"| {name} | {_typed(c.type, c.unit)} | {_cell(c.meaning)} |\n")
        blocks.append("".join(line or "\n" for line in lines))
    return "\n".join(blocks)


def with_reference(document: str) -> str:
    """The document with what stands between its pairs of markers replaced by the current reference.

    Raises ValueError without markers.
    """
    for what, render in (("views", schema_markdown), ("functions", macros_markdown), ("reports", reports_markdown)):
        begin, end = f"<!-- {what}: rendered -->\n", f"<!-- end of {what} -->\n"
        before, found, rest = document.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"the document has no markers for the {what}")
        document = f"{before}{begin}\n{render()}\n{end}{after}"
    return document


def _typed(type_: str, unit: str) -> str:
    return f"{type_}, {unit}" if unit else type_


def _cell(text: str) -> str:
    # A bar ends a cell, and << or <n> would be read as HTML.
    return re.sub(r"[|<>]", lambda m: {"|": "\\|", "<": "&lt;", ">": "&gt;"}[m[0]], text)
