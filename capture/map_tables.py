"""From exports of maps to rows of typed tables: keys and values as the program's BTF describes them.

A map's stream is called after program and map. Another program of the same name whose map has other columns gets a
stream of its own, with a number behind the name, and so does a map whose name SQL would take for another's, as LAT and
lat; `program` tells generations with the same columns apart. Numbers of
64 bits are stored as signed ones, so that a difference in SQL is a difference; from 2^63 they wrap, as `aux` does.
Histograms are count, sum, min, max and two lists: the lower bound of every bucket that is not empty, and its count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..store import map_streams
from ..store.tables import Column, Table
from .programs import histogram
from .programs.maps import Map, MapKind, Member, TypeLayout
from .programs.program import Program
from .segment.map_ring import Entries, Span

U8 = NDArray[np.uint8]
HEAD_COLUMNS = (
    Column("count", "i64", "values counted"),
    Column("sum", "i64", "their sum"),
    Column("min", "i64", "the least"),
    Column("max", "i64", "the greatest"),
)
BUCKET_COLUMNS = (
    Column("lower", "i64s", "smallest value of each bucket that is not empty, ascending"),
    Column("counts", "i64s", "values in each of them"),
)
_LEAF = {("u", 1): "i16", ("u", 2): "i32", ("u", 4): "i64", ("i", 1): "i16", ("i", 2): "i16", ("i", 4): "i32"}
_MOST_NAME = 100


@dataclass(frozen=True)
class _Leaf:
    """A column of the stream and where its bytes are, in the key or in the value."""

    column: Column
    member: Member
    in_key: bool


class MapTable:
    """The stream of one map. Raises ValueError for a map that has more columns than a stream may have."""

    def __init__(self, name: str, program: Program, index: int) -> None:
        declared = self.declared = program.maps[index]
        self._leaves = list(_leaves(declared))
        own = [leaf.column for leaf in self._leaves]
        self._fixed = declared.kind in (MapKind.HIST, MapKind.STATS)
        if self._fixed:
            own += HEAD_COLUMNS
        if declared.kind == MapKind.HIST:
            own += BUCKET_COLUMNS
        kind = declared.kind.name.lower()
        kept = "each epoch anew" if declared.aggregate or self._fixed else "as it stood at the end"
        self.table: Table = map_streams.table(
            name, f"map {declared.name} of program {program.name}: {kind}, {kept}", own
        )

    def rows(self, span: Span, n: int, e: Entries) -> pa.RecordBatch:
        """The rows of one record's entries."""
        columns: dict[str, Any] = {
            "program": span.program,
            "rank": span.rank,
            "worker": span.worker,
            "workers": span.workers,
            "epoch": span.epoch,
            "epochs": span.epochs,
            "t_begin": span.t_begin,
            "t_end": span.t_end,
            "refused": span.refused,
        } | dict(zip(("eligible", "observed", "throttled", "lost", "faulted"), span.coverage, strict=True))
        for leaf in self._leaves:
            columns[leaf.column.name] = _values(leaf.member, leaf.column.type, e.keys if leaf.in_key else e.values)
        if self._fixed:
            head = e.head if self.declared.kind == MapKind.HIST else _words(e.values)
            columns |= {c.name: head[:, i].astype(np.int64) for i, c in enumerate(HEAD_COLUMNS)}
        if self.declared.kind == MapKind.HIST:
            ends = np.concatenate([[0], np.cumsum(e.buckets.astype(np.int64))]).astype(np.int32)
            lower = histogram.LOWER.astype(np.int64)[e.bucket]
            columns["lower"], columns["counts"] = _lists(ends, lower), _lists(ends, e.count)
        arrays = [_array(columns[c.name], c, n) for c in self.table]
        return pa.record_batch(arrays, schema=self.table.schema)


class MapTables:
    """The streams of one recording's maps, by program id and map."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], MapTable] = {}
        self._named: dict[str, tuple[Table, tuple[str, str]]] = {}
        """streams by name, and of which program's which map"""

    def of(self, program_id: int, program: Program, index: int) -> MapTable:
        """The stream of a map. Raises ValueError where it can have none."""
        found = self._of.get((program_id, index))
        if found is None:
            found = self._of[program_id, index] = self._fresh(program, index)
        return found

    def forget(self, program_id: int) -> None:
        """Nothing of this program comes any more."""
        self._of = {key: table for key, table in self._of.items() if key[0] != program_id}

    def _fresh(self, program: Program, index: int) -> MapTable:
        base = _plain(f"{program.name}_{program.maps[index].name}".lower())[: _MOST_NAME - 6]
        base = base if base[0].isalpha() else f"m{base}"
        whose = program.name, program.maps[index].name
        for number in range(1, map_streams.MOST_STREAMS + 1):
            made = MapTable(base if number == 1 else f"{base}_{number}", program, index)
            known, of = self._named.setdefault(made.table.name, (made.table, whose))
            # SQL takes lat and LAT for one name, and a_b of c is called as b_c of a would be: they are not one map.
            if of == whose and known.columns == made.table.columns:
                made.table = known
                return made
        raise ValueError(f"{map_streams.MOST_STREAMS} maps of that name are others, or have other columns")


def _leaves(declared: Map) -> Iterator[_Leaf]:
    """Columns for every leaf of key and value. Names that are taken get key_ or value_ before them, then a number."""
    fixed = (
        {c.name for c in (*HEAD_COLUMNS, *BUCKET_COLUMNS)} if declared.kind in (MapKind.HIST, MapKind.STATS) else set()
    )
    taken = {n.lower() for n in map_streams.FIXED | fixed}
    parts = [("key", declared.key, declared.key_size)]
    if not fixed:
        parts.append(("value", declared.value, declared.value_size))
    for part, layout, size in parts:
        for member in _members(layout, size):
            name = _plain(member.name) or part
            if name.lower() in taken:
                name = f"{part}_{name}"
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            meaning = f"{part} {member.name}".strip() + (f" of {layout.name}" if layout and layout.name else "")
            yield _Leaf(Column(name, _type(member), meaning), member, part == "key")


def _members(layout: TypeLayout | None, size: int) -> tuple[Member, ...]:
    if layout is not None and layout.members:
        return layout.members
    return (Member("", 0, size) if size in (1, 2, 4, 8) else Member("", 0, 1, "u", size),)


def _type(m: Member) -> str:
    if m.kind == "c":
        return "str"
    if m.count > 1:
        return "i64s"
    if m.kind == "b" and not m.bits:
        return "bool"
    return "i64" if m.bits else _LEAF.get((m.kind, m.size), "i64")


def _values(m: Member, kind: str, data: U8) -> Any:
    raw = data[:, m.offset : m.offset + m.size * m.count]
    if m.kind == "c":
        return [bytes(row).split(b"\0")[0].decode("utf-8", "replace") for row in raw]
    dtype = np.dtype(f"<{'i' if m.kind == 'i' else 'u'}{m.size}")
    numbers = np.ascontiguousarray(raw).view(dtype).reshape(len(data), -1)
    if m.bits:
        wide = numbers[:, 0].astype(np.uint64) >> np.uint64(m.bit_offset)
        shift = np.uint64(64 - m.bits)
        signed = (wide << shift).view(np.int64) >> np.int64(64 - m.bits)
        return signed if m.kind == "i" else (wide << shift >> shift).view(np.int64)
    if kind == "i64s":
        ends = np.arange(len(data) + 1, dtype=np.int32) * m.count
        return _lists(ends, numbers.astype(np.int64).reshape(-1))
    if kind == "bool":
        return numbers[:, 0] != 0
    return numbers[:, 0]


def _lists(ends: NDArray[np.int32], numbers: NDArray[np.int64]) -> pa.Array[Any]:
    offsets: Any = pa.array(ends)
    return pa.ListArray.from_arrays(offsets, pa.array(numbers))


def _words(values: U8) -> NDArray[np.uint64]:
    return np.ascontiguousarray(values).view("<u8").reshape(len(values), -1)


def _array(values: Any, column: Column, n: int) -> pa.Array[Any]:
    if isinstance(values, (pa.Array, list)):
        return pa.array(values, column.arrow) if isinstance(values, list) else values.cast(column.arrow)
    if values is None or isinstance(values, int):
        one: Any = pa.scalar(values, column.arrow)
        many: pa.Array[Any] = pa.repeat(one, n)
        return many
    return pa.array(values.astype(column.arrow.to_pandas_dtype()), column.arrow)


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
