"""Numbers looked up by a small number: which classes an operator has, which layer a class is of.

A table is the contents of a read-only array map with one entry, in pieces where it is longer than such a value may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..maps import MAX_VALUE_BYTES, Map, MapKind
from .emitter import R0, R1, Emitter, Label
from .errors import Problem

MAX_PIECES = 32


class ConstantTables:
    """The tables of a query, each kept once. first: index of the first of their maps in the program."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._found: dict[bytes, int] = {}

    def look(self, out: Emitter, table: Sequence[int], width: int, beyond: Label) -> None:
        """r0 = table[r0], entries of `width` bytes; to `beyond` where r0, not negative, is past its end. Uses r1."""
        piece = MAX_VALUE_BYTES // width
        if len(table) > piece * MAX_PIECES:
            raise Problem(
                out.at, f"that takes a table of {len(table):,} numbers", "compare numbers, or join names in SQL"
            )
        done = Label()
        for begin in range(0, len(table), piece):
            part = table[begin : begin + piece]
            end, other = begin + len(part), Label()
            last = end == len(table)
            out.jump(beyond if last else other, "jge", R0, end, constant=True)
            if begin:
                out.alu("sub", R0, begin, constant=True)
            if width > 1:
                out.alu("lsh", R0, width.bit_length() - 1, constant=True)
            out.table(R1, self.first + self._index(b"".join(v.to_bytes(width, "little") for v in part)))
            out.alu("add", R1, R0)
            out.load(R0, R1, 0, width)
            if not last:
                out.jump(done)
            out.here(other)
        out.here(done)

    def member(self, out: Emitter, ids: Sequence[int], no: Label) -> None:
        """r0 = not 0 where r0 is one of `ids`: a bit each; to `no` past the last. Uses r1 and r2."""
        bits = bytearray(ids[-1] // 8 + 1)
        for i in ids:
            bits[i // 8] |= 1 << i % 8
        out.copy(2, R0)
        out.alu("rsh", R0, 3, constant=True)
        self.look(out, bits, 1, no)
        out.alu("and", 2, 7, constant=True)
        out.alu("rsh", R0, 2)
        out.alu("and", R0, 1, constant=True)

    def _index(self, contents: bytes) -> int:
        return self._found.setdefault(contents, len(self._found))

    def maps(self) -> list[Map]:
        """Their declarations, in order."""
        return [
            Map(f"table_{i}", MapKind.ARRAY, 4, len(c), 1, read_only=True, initial=c)
            for i, c in enumerate(self._found, 1)
        ]
