"""The host ring: what the engine's host side tells while it runs (requests, batches, membership).

A record is 8 bytes (u32 length with header and padding, u16 table, u16 zero) and the table's columns in order:
integers as i64, strings as u16 length and UTF-8; padded to 8 bytes. A record never wraps: where the ring's end is too
near, a record of table 0 fills it. The writer moves HOST_BASE past what it is about to overwrite and raises
HOST_RESERVED before it writes, and raises HOST_HEAD after, so a reader knows of every byte whether it may be torn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from ...store.tables import ENGINE_TABLES, Table

FILLER = 0
TABLE_IDS = {t.name: i + 1 for i, t in enumerate(ENGINE_TABLES)}
_BY_ID = {i + 1: t for i, t in enumerate(ENGINE_TABLES)}
_HEAD = struct.Struct("<IHH")


def encode(table: Table, row: tuple[Any, ...]) -> bytes:
    """One record. Strings are cut at 255 bytes, so that any record fits the smallest ring."""
    out = b""
    for column, value in zip(table, row, strict=True):
        if column.type == "str":
            text = str(value).encode()[:255]
            out += struct.pack("<H", len(text)) + text
        else:
            out += struct.pack("<q", value)
    length = (_HEAD.size + len(out) + 7) // 8 * 8
    return (_HEAD.pack(length, TABLE_IDS[table.name], 0) + out).ljust(length, b"\0")


def filler(length: int) -> bytes:
    """A record that says nothing, `length` bytes long (a multiple of 8, at least 8)."""
    return _HEAD.pack(length, FILLER, 0).ljust(length, b"\0")


def decode(data: bytes) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(table, row) of each record in `data`, which begins at a record's begin.

    Raises ValueError where the bytes are no such records.
    """
    at = 0
    while at + _HEAD.size <= len(data):
        length, kind, zero = _HEAD.unpack_from(data, at)
        if length < _HEAD.size or length % 8 or at + length > len(data) or zero:
            raise ValueError(f"no record at byte {at}")
        if kind in _BY_ID:
            table = _BY_ID[kind]
            yield table.name, _row(table, data[at + _HEAD.size : at + length])
        elif kind != FILLER:
            raise ValueError(f"unknown table {kind} at byte {at}")
        at += length


def _row(table: Table, body: bytes) -> tuple[Any, ...]:
    values: list[Any] = []
    at = 0
    for column in table:
        try:
            if column.type == "str":
                (n,) = struct.unpack_from("<H", body, at)
                text = body[at + 2 : at + 2 + n]
                if len(text) != n:
                    raise ValueError(f"{table.name}.{column.name} is cut off")
                values.append(text.decode("utf-8", "replace"))
                at += 2 + n
            else:
                values.append(struct.unpack_from("<q", body, at)[0])
                at += 8
        except struct.error as e:
            raise ValueError(f"{table.name}.{column.name} is cut off") from e
    return tuple(values)


def records(table: str, rows: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """The records of several rows of one table."""
    declared = _BY_ID[TABLE_IDS[table]]
    return [encode(declared, row) for row in rows]
