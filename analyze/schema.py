"""What can be asked: every view with its columns, as a table, as text and as the reference in docs/sql.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from ..store.errors import Usage
from .catalogue import View, views

SCHEMA = pa.schema(
    [
        pa.field("view", pa.string()),
        pa.field("column", pa.string()),
        pa.field("type", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("meaning", pa.string()),
    ]
)
_BEGIN, _END = "<!-- views: rendered by megascope schema --format markdown -->\n", "<!-- end of views -->\n"


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


def with_views(document: str) -> str:
    """The document with what stands between its two markers replaced by the current reference.

    Raises ValueError without markers.
    """
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the document has no markers for the views")
    return f"{before}{_BEGIN}\n{schema_markdown()}\n{_END}{after}"


def _typed(type_: str, unit: str) -> str:
    return f"{type_}, {unit}" if unit else type_


def _cell(text: str) -> str:
    # A bar ends a cell, and << or <n> would be read as HTML.
    return re.sub(r"[|<>]", lambda m: {"|": "\\|", "<": "&lt;", ">": "&gt;"}[m[0]], text)
