"""An answer as a table that fits a terminal: numbers to the right and whole, long text cut with an ellipsis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from .text import is_number, plain, printable

_GAP = "  "
_LEAST = 8
"""Cells that a cut column keeps at least; columns that do not fit even so are left out and counted."""


@dataclass(frozen=True)
class Grid:
    """The table's lines, and the names of columns for which there was no room."""

    lines: list[str]
    left_out: list[str]


def grid(table: pa.Table, width: int | None) -> Grid:
    """Lay out `table` in `width` cells, or in as many as it takes."""
    table = table.combine_chunks()
    names = [printable(name) for name in table.column_names]
    right = [is_number(field.type) for field in table.schema]
    columns = [_texts(column) for column in table.columns]
    natural = [max(map(_cells, (name, *column)), default=0) for name, column in zip(names, columns, strict=True)]
    widths = _fit(natural, right, width)
    kept = len(widths)
    lines = [_line(names[:kept], widths, right), _GAP.join("─" * w for w in widths)]
    lines += [_line(row, widths, right) for row in zip(*columns[:kept], strict=True)]
    return Grid([line.rstrip() for line in lines], table.column_names[kept:])


def _texts(column: pa.ChunkedArray[Any]) -> list[str]:
    return ["null" if text is None else printable(text) for chunk in column.chunks for text in plain(chunk)]


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _fit(natural: list[int], right: list[bool], width: int | None) -> list[int]:
    """Widths of as many columns as fit: text is cut first, the widest most, then columns go from the right."""
    for kept in range(len(natural), 0, -1):
        room = None if width is None else width - len(_GAP) * (kept - 1)
        least = [w if number else min(w, _LEAST) for w, number in zip(natural[:kept], right, strict=False)]
        if room is None or sum(least) <= room or kept == 1:
            return _cut(natural[:kept], right, room)
    return []


def _cut(natural: list[int], right: list[bool], room: int | None) -> list[int]:
    if room is None or sum(natural) <= room:
        return natural
    level = max((w for w, number in zip(natural, right, strict=False) if not number), default=_LEAST)
    while level > _LEAST:
        level -= 1
        widths = [w if number else min(w, level) for w, number in zip(natural, right, strict=False)]
        if sum(widths) <= room:
            return widths
    return [w if number else min(w, _LEAST) for w, number in zip(natural, right, strict=False)]


def _line(texts: Sequence[str], widths: list[int], right: list[bool]) -> str:
    return _GAP.join(_cell(text, w, number) for text, w, number in zip(texts, widths, right, strict=False))


def _cell(text: str, width: int, right: bool) -> str:
    cells = _cells(text)
    if cells > width:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    pad = " " * (width - cells)
    return pad + text if right else text + pad
