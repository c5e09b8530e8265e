"""Arrow values as text: exact, and alike in every format that is text.

Integers and decimals keep every digit. Times are ISO 8601 with all digits of their unit; those with a zone are UTC and
end in Z; DuckDB's infinite ones are `infinity` and `-infinity`. Bytes are hexadecimal, intervals ISO 8601 durations.
Lists, structs, maps (as lists of key and value) and unions are JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_INFINITE = {(1 << 63) - 1: "infinity", 1 - (1 << 63): "-infinity"}
_INFINITE_DAYS = {(1 << 31) - 1: "infinity", 1 - (1 << 31): "-infinity"}
_quote = json.JSONEncoder(ensure_ascii=False).encode


def is_number(type_: pa.DataType) -> bool:
    """Whether a column of this type is aligned as numbers are, and written without quotes in JSON."""
    return kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)


def printable(text: str) -> str:
    """Text with every control character escaped: a trace's names must not command the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(array: Any) -> list[str | None]:
    """Each value as text, None for null."""
    type_ = array.type
    if kinds.is_dictionary(type_):
        return plain(array.dictionary_decode())
    if kinds.is_string(type_) or kinds.is_large_string(type_):
        return list(array.to_pylist())
    if kinds.is_integer(type_) or kinds.is_boolean(type_):
        return list(array.cast(pa.string()).to_pylist())
    if kinds.is_floating(type_):
        return [None if v is None else _digits(v, type_) for v in array.to_pylist()]
    if kinds.is_decimal(type_):
        return [None if v is None else format(v, "f") for v in array.to_pylist()]
    if kinds.is_timestamp(type_):
        return _timestamps(array)
    if kinds.is_date32(type_):
        return _dates(array.cast(pa.int32()).to_pylist(), "D", _INFINITE_DAYS, "")
    if kinds.is_time64(type_):
        return [None if v is None else _time(v, type_.unit) for v in array.cast(pa.int64()).to_pylist()]
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        return [None if v is None else v.hex() for v in array.to_pylist()]
    if kinds.is_interval(type_):
        return [None if v is None else _duration(*v) for v in array.to_pylist()]
    if kinds.is_null(type_):
        return [None] * len(array)
    return [text if scalar.is_valid else None for text, scalar in zip(encoded(array), array, strict=True)]


def encoded(array: Any) -> list[str]:
    """Each value as JSON. What JSON has no number for is text: "NaN", "Infinity", "-Infinity"."""
    type_ = array.type
    if kinds.is_dictionary(type_):
        return encoded(array.dictionary_decode())
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return _lists(array, encoded(array.values))
    if kinds.is_fixed_size_list(type_):
        return encoded(array.cast(pa.list_(type_.value_type)))
    if kinds.is_map(type_):
        pairs = zip(encoded(array.keys), encoded(array.items), strict=True)
        return _lists(array, [f'{{"key": {key}, "value": {value}}}' for key, value in pairs])
    if kinds.is_struct(type_):
        return _structs(array)
    if kinds.is_union(type_):
        return ["null" if not s.is_valid else encoded(pa.repeat(s.value, 1))[0] for s in array]
    if kinds.is_floating(type_):
        return ["null" if v is None else _float(v, type_) for v in array.to_pylist()]
    texts = plain(array)
    if is_number(type_) or kinds.is_boolean(type_):
        return ["null" if text is None else text for text in texts]
    return ["null" if text is None else _quote(text) for text in texts]


def _lists(array: Any, items: list[str]) -> list[str]:
    ends = array.offsets.to_pylist()
    spans = zip(ends[:-1], ends[1:], array.is_valid().to_pylist(), strict=True)
    return ["[" + ", ".join(items[begin:end]) + "]" if valid else "null" for begin, end, valid in spans]


def _structs(array: Any) -> list[str]:
    names = [_quote(array.type.field(i).name) for i in range(array.type.num_fields)]
    columns = [encoded(child) for child in array.flatten()]
    rows: Sequence[Sequence[str]] = list(zip(*columns, strict=True)) if columns else [()] * len(array)
    return [
        "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True)) + "}" if valid else "null"
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _digits(value: float, type_: pa.DataType) -> str:
    """The fewest digits that read back as the same number of that width."""
    return str(np.float32(value)) if kinds.is_float32(type_) else repr(value)


def _float(value: float, type_: pa.DataType) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return _digits(value, type_)


def _timestamps(array: Any) -> list[str | None]:
    zone = "Z" if array.type.tz else ""
    # Through integers: Python's own datetimes stop at microseconds and at the year 9999.
    return _dates(array.cast(pa.int64()).to_pylist(), array.type.unit, _INFINITE, zone)


def _dates(values: list[int | None], unit: str, infinite: dict[int, str], zone: str) -> list[str | None]:
    times = np.array([0 if v is None else v for v in values], dtype=np.int64).astype(f"M8[{unit}]")
    texts = np.datetime_as_string(times).tolist() if values else []
    return [
        None if v is None else infinite[v] if v in infinite else text + zone
        for v, text in zip(values, texts, strict=True)
    ]


def _time(value: int, unit: str) -> str:
    seconds, fraction = divmod(value, 10 ** _UNIT_DIGITS[unit])
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{fraction:0{_UNIT_DIGITS[unit]}}"


def _duration(months: int, days: int, nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    whole, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    seconds = f"{sign}{whole}" + (f".{fraction:09}".rstrip("0") if fraction else "")
    date = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{date}T{seconds}S" if nanoseconds or not date else f"P{date}"
