"""Values to eBPF: each appears in r0; keys of maps are put together in the frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....store.tables import FLAG_RANGE
from .codegen_conditions import Conditions
from .constant_tables import ConstantTables
from .emitter import R0, R1, R2, R6, R10, Emitter, Label
from .fields import ROW
from .map_uses import MapUse
from .tree import Binary, Bits, Choice, Const, Coordinate, Expr, Feedback, Load, Local, Looked, Read, Since, Unary

_ALU = {
    "+": "add", "-": "sub", "*": "mul", "/": "sdiv", "%": "smod", "&": "and", "|": "or", "^": "xor",
    "<<": "lsh", ">>": "arsh",
}  # fmt: skip


class Values(Conditions):
    """index: of maps by name; uses: of the maps that the query fills; cells: of feedback maps, how many cells."""

    def __init__(
        self,
        out: Emitter,
        tables: ConstantTables,
        index: Mapping[str, int],
        uses: Mapping[str, MapUse],
        cells: Mapping[str, int],
    ) -> None:
        super().__init__(out, tables)
        self.index, self.uses, self.cells = index, uses, cells
        self.locals: list[tuple[int, int | None]] = []
        """place of each local of the clause, and of the word that says that it is there"""

    def value(self, e: Expr) -> None:
        out = self.out
        match e:
            case Const() | Load():
                self.simple(R0, e)
            case Bits(of, shift, bits):
                self.simple(R0, of)
                self._extract(shift, bits, of.size)
            case Since(flags):
                self._since(flags)
            case Looked(of, table, width):
                self.value(of)
                self.tables.look(out, table, width, self.missing)
                out.jump(self.missing, "jeq", R0, (1 << 8 * width) - 1, constant=True)
            case Coordinate():
                self._coordinate(e)
            case Unary("-", inner):
                self.value(inner)
                out.alu("neg", R0, 0)
            case Unary("~", inner):
                self.value(inner)
                out.alu("xor", R0, -1, constant=True)
            case Binary(op, left, right):
                name = _ALU[op]
                self.operands(left, right, lambda operand, constant: out.alu(name, R0, operand, constant=constant))
            case Choice(condition, yes, no):
                self.choose(condition, lambda: self.value(yes), lambda: self.value(no))
            case Local(index, unsure):
                self._local(index, unsure)
            case Read(name, keys):
                self._read(name, keys)
            case Feedback(name, index):
                self._feedback(name, index)
            case _:
                self._truth(e)

    def _truth(self, e: Expr) -> None:
        """A condition as 0 or 1."""
        out, no, end = self.out, Label(), Label()
        self.condition(e, no, False)
        out.move(R0, 1)
        out.jump(end)
        out.here(no)
        out.move(R0, 0)
        out.here(end)

    def _extract(self, shift: int, bits: int, size: int) -> None:
        if shift:
            self.out.alu("rsh", R0, shift, constant=True)
        if shift + bits < 8 * size:
            self.out.alu("and", R0, (1 << bits) - 1, constant=True)

    def _since(self, flags: int) -> None:
        out = self.out
        if flags:
            out.load(R1, R6, ROW["flags"].offset, 1)
            out.alu("and", R1, flags, constant=True)
            out.jump(self.missing, "jeq", R1, 0, constant=True)
        out.load(R1, R6, ROW["aux"].offset, 8)
        out.jump(self.missing, "jeq", R1, 0, constant=True)
        out.load(R0, R6, ROW["t"].offset, 8)
        out.alu("sub", R0, R1)

    def _coordinate(self, e: Coordinate) -> None:
        out, end = self.out, Label()
        out.load(R0, R6, ROW["flags"].offset, 1)
        out.jump(self.missing, "jset", R0, FLAG_RANGE, constant=True)
        out.load(R0, R6, ROW["task_class"].offset, 2)
        self.tables.look(out, e.which, 1, self.missing)
        out.jump(self.missing, "jeq", R0, 0, constant=True)
        out.copy(R1, R0)
        for i, (shift, bits) in enumerate(e.layouts, 1):
            other = Label()
            if i < len(e.layouts):
                out.jump(other, "jne", R1, i, constant=True)
            out.load(R0, R6, ROW["tile"].offset, 4)
            self._extract(shift, bits, 4)
            if i < len(e.layouts):
                out.jump(end)
            out.here(other)
        out.here(end)

    def _local(self, index: int, unsure: bool) -> None:
        place, there = self.locals[index]
        if unsure and there is not None:
            self.out.load(R0, R10, there, 8)
            self.out.jump(self.missing, "jeq", R0, 0, constant=True)
        self.out.load(R0, R10, place, 8)

    # Keys and maps

    def key(self, name: str, keys: Sequence[Expr], place: int) -> None:
        """A map's key at a place in the frame; what belongs to no key is zero."""
        use, out = self.uses[name], self.out
        if sum(c.bytes for c in use.columns) < use.key_bytes:
            for at in range(0, use.key_bytes, 8):
                out.store_constant(R10, place + at, min(8, use.key_bytes - at), 0)
        for e, column, at in zip(keys, use.columns, use.offsets, strict=False):
            self.value(e)
            out.store(R10, place + at, column.bytes, R0)

    def point(self, register: int, place: int) -> None:
        """register = address of a place in the frame."""
        self.out.copy(register, R10)
        self.out.alu("add", register, place, constant=True)

    def _read(self, name: str, keys: Sequence[Expr]) -> None:
        out, absent = self.out, Label()
        with out.area(self.uses[name].key_bytes) as place:
            self.key(name, keys, place)
            out.map(R1, self.index[name])
            self.point(R2, place)
            out.call("map_lookup_elem")
        out.copy(R1, R0)
        out.move(R0, 0)
        out.jump(absent, "jeq", R1, 0, constant=True)
        out.load(R0, R1, 0, 8)
        out.here(absent)

    def _feedback(self, name: str, index: Expr | None) -> None:
        out = self.out
        with out.area(4) as place:
            if index is None:
                out.store_constant(R10, place, 4, 0)
            else:
                self.value(index)
                out.jump(self.missing, "jge", R0, self.cells[name], constant=True)
                out.store(R10, place, 4, R0)
            out.map(R1, self.index[name])
            self.point(R2, place)
            out.call("map_lookup_elem")
        out.jump(self.missing, "jeq", R0, 0, constant=True)
        out.load(R1, R0, 8, 8)
        out.jump(self.missing, "jeq", R1, 0, constant=True)
        out.load(R0, R0, 0, 8)
