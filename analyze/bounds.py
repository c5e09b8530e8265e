"""Bounds as people read them: what `count_bounds` and `quantile_bounds` gave, in one cell of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

_COUNT = ("low", "high")
_QUANTILE = ("low", "high", "low_open", "high_open", "observed", "refused")


def readable(table: pa.Table) -> pa.Table:
    """The table with every column of bounds as text: `4,260 … 5,663`, `≥ 2,461`, `refused: 12 observed are too few`.

    A column `bounds` beside one called `value` is a value of another kind, in ns, and goes there.
    """
    beside_values = "value" in table.column_names
    for i, field in enumerate(table.schema):
        if kinds.is_struct(field.type) and _names(field.type) in (_COUNT, _QUANTILE):
            unit = " ns" if beside_values and field.name == "bounds" else ""
            texts = [bounds_text(value, unit) for value in table.column(i).to_pylist()]
            table = table.set_column(i, pa.field(field.name, pa.string()), pa.array(texts, pa.string()))
    if {"value", "bounds"} <= set(table.column_names):
        import pyarrow.compute as pc  # which takes its time to import

        both = pc.coalesce(table["value"], table["bounds"])
        table = table.set_column(table.column_names.index("value"), "value", both).drop_columns(["bounds"])
    return table


def bounds_text(bounds: dict[str, Any] | None, unit: str = "") -> str | None:
    """One value of either kind, with a unit after it; a count whose upper bound is not known has it open."""
    if bounds is None:
        return None
    if bounds.get("refused"):
        return f"refused: {bounds['refused']}"
    low, high = bounds["low"], bounds["high"]
    low_open, high_open = bool(bounds.get("low_open")), bool(bounds.get("high_open", high is None))
    if low_open and high_open:
        return f"unknown: {_span(low, high)}{unit} seen"
    if high_open:
        return f"≥ {_number(low)}{unit}"
    if low_open:
        return f"≤ {_number(high)}{unit}"
    return _span(low, high) + unit


def _span(low: float, high: float) -> str:
    return _number(low) if low == high else f"{_number(low)} … {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _names(type_: pa.DataType) -> Sequence[str]:
    return tuple(type_.field(i).name for i in range(type_.num_fields))
