"""Rows as they are shown: text made once, on the database's thread, and the values behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..analyze.text import is_number, plain, printable

Form = Callable[[Any], str]
_CELL = 200


def text(value: Any) -> str:
    """Text of a name; nothing for null. Control characters in a trace's names must not command the terminal."""
    return "" if value is None else printable(str(value))


@dataclass(frozen=True)
class Column:
    """A column of the table: the name of the value, its title, how it is written, and on which side it is aligned."""

    name: str
    title: str
    form: Form = text
    right: bool = True


@dataclass(frozen=True)
class Page:
    """A page of rows: titles, cells [rows][columns], which columns align right, and the rows' values."""

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def widths(self) -> list[int]:
        """The width that each column needs, in characters."""
        return [max(len(t), *(len(row[i]) for row in self.cells), 0) for i, t in enumerate(self.titles)]


EMPTY = Page((), (), (), ())


def page_of(columns: Sequence[Column]) -> Callable[[pa.Table], Page]:
    """What makes a page with these columns of an answer."""

    def make(table: pa.Table) -> Page:
        rows = table.to_pylist()
        return Page(
            tuple(c.title for c in columns),
            tuple(c.right for c in columns),
            tuple(tuple(c.form(row[c.name]) for c in columns) for row in rows),
            tuple(rows),
        )

    return make


def page_of_all(table: pa.Table) -> Page:
    """A page with every column as it is, for an answer that may have any; exact, as in `megascope sql`."""
    columns = [[_cut(v) for v in plain(column.combine_chunks())] for column in table.columns]
    cells = tuple(zip(*columns, strict=True)) if columns else ()
    right = tuple(is_number(field.type) for field in table.schema)
    return Page(tuple(printable(n) for n in table.schema.names), right, cells, ())


def _cut(value: str | None) -> str:
    if value is None:
        return "null"
    shown = printable(value[:_CELL])
    return shown + "…" if len(value) > _CELL else shown
