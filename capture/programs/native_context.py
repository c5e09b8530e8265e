"""Where the columns of event rows are: the context of a program, and all that the driver reads.

A batch comes as 64-byte rows or as one array per column. Both are places: column i of row r stands at
bases[base] + r * stride + offset. What is not read has no place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...store.errors import MegascopeError
from ...store.tables import EVENT_ROW, Column
from .helpers import HELPER_BY_NAME
from .isa import Kind, operation
from .llvm_text import Text
from .verdict import Verdict

ROW_BYTES = 64


class Place(NamedTuple):
    """base: index of an address; stride, offset, size: bytes. What a size has above the column's is dropped."""

    base: int
    stride: int
    offset: int
    size: int


Places = Mapping[str, Place]
ROWS: Places = {c.name: Place(0, ROW_BYTES, EVENT_ROW.offsets[c.name], c.bits // 8) for c in EVENT_ROW}
"""Rows as rings carry them: one base, the first row's address"""


def columns_read(verdict: Verdict) -> frozenset[str]:
    """Columns that an execution needs: the program's, and the driver's own."""
    ktime = HELPER_BY_NAME["ktime_get_ns"].id
    insns = verdict.program.insns
    for pc in verdict.reachable:
        op = operation(insns[pc])
        if op and op.kind is Kind.CALL and not op.register and insns[pc].imm == ktime:
            return verdict.columns | {"hook", "worker", "t"}
    return verdict.columns | {"hook", "worker"}


def places(columns: Mapping[str, NDArray[np.generic]], names: frozenset[str]) -> tuple[Places, NDArray[np.uint64], int]:
    """Places of `names`, the addresses they count from, and the number of rows.

    columns: by name, one-dimensional integers as wide as the column or wider, signed or not, of any stride (0 for a
    constant, see numpy.broadcast_to). Raises MegascopeError for a column that is missing or of another kind.
    """
    out: dict[str, Place] = {}
    bases, rows = list[int](), set[int]()
    for column in EVENT_ROW:
        if column.name not in names:
            continue
        given = columns.get(column.name)
        if given is None:
            raise MegascopeError("cannot run the program", f"it reads column {column.name}, which is not there")
        size = given.dtype.itemsize
        if given.ndim != 1 or given.dtype.kind not in "iu" or size < column.bits // 8:
            raise MegascopeError(
                "cannot run the program", f"column {column.name} is {given.dtype}[{given.ndim}], not {column.type}[1]"
            )
        out[column.name] = Place(len(bases), given.strides[0], 0, size)
        bases.append(given.ctypes.data)
        rows.add(len(given))
    if len(rows) != 1:
        raise MegascopeError("cannot run the program", f"its columns have different lengths: {sorted(rows)}")
    return out, np.array(bases, np.uint64), rows.pop()


def load(text: Text, column: Column, places: Places) -> str:
    """The column of row %row, in its own width; %base<i> are the bases."""
    place = places[column.name]
    offset = text.let(f"mul i64 %row, {place.stride}")
    if place.offset:
        offset = text.let(f"add i64 {offset}, {place.offset}")
    at = text.let(f"getelementptr i8, ptr %base{place.base}, i64 {offset}")
    # Align 1: an array of another process's making may begin anywhere.
    value = text.let(f"load i{8 * place.size}, ptr {at}, align 1")
    return value if 8 * place.size == column.bits else text.let(f"trunc i{8 * place.size} {value} to i{column.bits}")
