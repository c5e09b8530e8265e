"""The timeline in words: what its glyphs stand for, what a cell holds, where something is missing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from rich.text import Text

from .cells import LOST, WAITS, Cell
from .lanes import Span
from .page import text
from .times import count


def describe(cell: Cell | None, width_ns: int, class_names: dict[int, str]) -> Text:
    """What a cell of `width_ns` holds, in words."""
    told = Text()
    if cell is None:
        return told.append("nothing known", "dim")
    parts = []
    if cell.busy:
        name = class_names.get(cell.top_class, "")
        parts.append(f"busy {cell.busy * 100 // width_ns} %" + (f", most {text(name)}" if name else ""))
    for (name, _, _), ns in zip(WAITS, cell.waits, strict=True):
        if ns:
            parts.append(f"waits for {'work' if name == 'none' else name} {ns * 100 // width_ns} %")
    told.append(" · ".join(parts) or ("idle" if not cell.lost else ""))
    if cell.lost:
        told.append(f" · {count(cell.lost)} events lost around here", LOST)
    return told


def spans(table: pa.Table, window: tuple[int, int]) -> tuple[Span, ...]:
    """Where something is missing, from an answer to `queries.LOST_WHERE`; what has no time lies everywhere."""
    begin, end = window
    rows: list[dict[str, Any]] = table.to_pylist()
    return tuple(
        Span(
            begin if row["t_begin"] is None else row["t_begin"],
            end if row["t_end"] is None else row["t_end"],
            row["worker"],
            f"{text(row['kind'])}: {row['count']:,} missing"
            + ("" if row["worker"] is None else f" of worker {row['worker']}"),
        )
        for row in rows
    )


def notes(table: pa.Table) -> tuple[Span, ...]:
    """Marks, from an answer to `queries.MARKS`."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return tuple(
        Span(
            row["t"],
            row["t"],
            None,
            text(row["text"]) + (f" ({row['firings']:,} firings)" if row["firings"] > 1 else ""),
        )
        for row in rows
    )


def line() -> Text:
    """What the timeline's glyphs stand for."""
    told = Text("▄█ task", no_wrap=True, overflow="ellipsis")
    for name, letter, colour in WAITS:
        told.append("  ")
        told.append(letter, f"bold {colour}")
        told.append(f" {'idle' if name == 'none' else name}")
    told.append("  ")
    told.append("! loss", f"bold {LOST}")
    return told
