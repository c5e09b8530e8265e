"""A report as text, as JSON and as Parquet: in each of them what the rows stand for is part of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .bounds import readable
from .grid import grid
from .report import Answer, Report
from .text import encoded

TEXT_ROWS = 40
"""Rows of a report as text, unless told otherwise."""


def report_text(answer: Answer, *, limit: int | None = None, width: int | None = None) -> str:
    """What it stands for, then a table of at most `limit` rows, in `width` cells."""
    report, shown = answer.report, answer.rows.slice(0, TEXT_ROWS if limit is None else limit)
    laid = grid(readable(_short(shown, report)), width)
    lines = [f"{report.name}: {report.meaning}", _window_line(answer), *answer.lines, "", *laid.lines]
    if shown.num_rows < answer.rows.num_rows:
        lines.append(f">{shown.num_rows:,} of {answer.rows.num_rows:,} rows")
    if laid.left_out:
        lines.append(f"no room for {', '.join(laid.left_out)}")
    return "".join(f"{line}\n" for line in lines)


def report_json(answer: Answer, *, limit: int | None = None) -> str:
    """One object: report, meaning, window ([begin, end) in ns), stands_for, columns, rows."""
    rows = (answer.rows if limit is None else answer.rows.slice(0, limit)).combine_chunks()
    keys = encoded(pa.array(rows.column_names, pa.string()))
    columns = [[value for chunk in column.chunks for value in encoded(chunk)] for column in rows.columns]
    texts = [
        "  {" + ", ".join(f"{k}: {v}" for k, v in zip(keys, row, strict=True)) + "}"
        for row in zip(*columns, strict=True)
    ]
    head = json.dumps(_about(answer), ensure_ascii=False, indent=1).removesuffix("\n}")
    body = ",\n".join(texts)
    return f'{head},\n "rows": [\n{body}\n ]\n}}\n'


def report_parquet(answer: Answer, *, limit: int | None = None) -> bytes:
    """The rows; the file's metadata `megascope.report` is the JSON of the rest."""
    rows = answer.rows if limit is None else answer.rows.slice(0, limit)
    told = rows.replace_schema_metadata({"megascope.report": json.dumps(_about(answer), ensure_ascii=False)})
    sink = pa.BufferOutputStream()
    pq.write_table(told, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _about(answer: Answer) -> dict[str, Any]:
    report = answer.report
    columns = {c.name: {"unit": c.unit, "meaning": c.meaning} for c in report.columns}
    return {
        "report": report.name,
        "meaning": report.meaning,
        "window": answer.window,
        "stands_for": answer.lines,
        "columns": columns,
    }


def _short(rows: pa.Table, report: Report) -> pa.Table:
    """Without digits that nobody reads: times to the ns, shares to six digits, on the side on which they stay true."""
    for i, column in enumerate(report.columns):
        if pa.types.is_floating(rows.schema.types[i]):
            short = _SHORT["ms"] if column.unit == "ms" else _SHORT["high" if column.name.endswith("_high") else "low"]
            values = [v if v is None or not math.isfinite(v) else short(v) for v in rows.column(i).to_pylist()]
            rows = rows.set_column(i, column.name, pa.array(values, pa.float64()))
    return rows


_SHORT: dict[str, Callable[[float], float]] = {
    "ms": lambda v: round(v, 6),
    # Down, so that a share of 1.0 means that nothing is missing; and a greatest share up.
    "low": lambda v: math.floor(v * 1e6 + 1e-9) / 1e6,
    "high": lambda v: math.ceil(v * 1e6 - 1e-9) / 1e6,
}


def _window_line(answer: Answer) -> str:
    if answer.window is None:
        return "window: the trace has no events"
    begin, end = answer.window
    return f"window: {(end - begin) / 1e6:,.3f} ms of device time, from {begin} to {end} ns"
