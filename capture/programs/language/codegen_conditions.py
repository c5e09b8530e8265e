"""Conditions to eBPF: jumps, with what does not decide left out.

While something is computed, `missing` is where to go if the event does not carry it: the false side of a condition,
the end of a statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ....store.tables import FLAG_RANGE
from .constant_tables import ConstantTables
from .emitter import R0, R1, R6, Emitter, Label
from .fields import ROW
from .tree import Compare, Const, Expr, Load, Logic, Member, Sample, Unary

_JUMP = {"==": "jeq", "!=": "jne", "<": "jslt", ">": "jsgt", "<=": "jsle", ">=": "jsge"}
_NOT = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SWAPPED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_COMMUTE = ("+", "*", "&", "|", "^")
_MIX = (0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9)
"""Multipliers of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
_U64 = (1 << 64) - 1
FEW = 4
"""A set of at most so many ranges of numbers is compared, a larger one looked up."""


def sample_hash(task: int) -> int:
    """What sample(1/n) divides by n, the task is in the sample if nothing remains: 32 bits of the generation, mixed."""
    h = task * _MIX[0] & _U64
    h ^= h >> 32
    return (h * _MIX[1] & _U64) >> 32


class Conditions(ABC):
    """Writes conditions into an emitter; `value` is the rest of the code's business."""

    def __init__(self, out: Emitter, tables: ConstantTables) -> None:
        self.out, self.tables = out, tables
        self.missing = Label()

    @abstractmethod
    def value(self, e: Expr) -> None:
        """r0 = the value, or to `missing`."""

    def guarded(self, e: Expr, no: Label) -> None:
        """On where the condition holds; to `no` where it does not, or reaches what is missing."""
        outer, self.missing = self.missing, no
        self.condition(e, no, False)
        self.missing = outer

    def condition(self, e: Expr, to: Label, sense: bool) -> None:
        """To a label where the condition's truth is `sense`, else on."""
        out = self.out
        match e:
            case Const(value):
                if bool(value) == sense:
                    out.jump(to)
            case Unary("!", inner):
                self.condition(inner, to, not sense)
            case Logic(op, left, right):
                if (op == "&&") == sense:
                    skip = Label()
                    self.condition(left, skip, not sense)
                    self.condition(right, to, sense)
                    out.here(skip)
                else:
                    self.condition(left, to, sense)
                    self.condition(right, to, sense)
            case Compare(op, left, right):
                op = op if sense else _NOT[op]
                self.operands(
                    left,
                    right,
                    lambda operand, constant: out.jump(to, _JUMP[op], R0, operand, constant=constant),
                    lambda operand: out.jump(to, _JUMP[_SWAPPED[op]], R0, operand, constant=True),
                )
            case Member(of, ids):
                self.value(of)
                self._member(ids, to, sense)
            case Sample(n):
                self._sample(n, to, sense)
            case _:
                self.value(e)
                out.jump(to, "jne" if sense else "jeq", R0, 0, constant=True)

    def operands(
        self,
        left: Expr,
        right: Expr,
        then: Callable[[int, bool], None],
        swapped: Callable[[int], None] | None = None,
    ) -> None:
        """r0 = left, then(right, is it a constant).

        swapped(left), where it is given: r0 is the right, and the left a constant.
        """
        out = self.out
        if isinstance(right, Const):
            self.value(left)
            then(right.value, True)
        elif isinstance(right, Load):
            self.value(left)
            self.simple(R1, right)
            then(R1, False)
        elif isinstance(left, Const) and swapped:
            self.value(right)
            swapped(left.value)
        elif isinstance(left, Const | Load):
            self.value(right)
            out.copy(R1, R0)
            self.simple(R0, left)
            then(R1, False)
        else:
            self.value(left)
            with out.kept(R0) as kept:
                self.value(right)
                out.copy(R1, R0)
                out.recall(R0, kept)
            then(R1, False)

    def simple(self, dst: int, e: Const | Load) -> None:
        """dst = a constant or a column."""
        if isinstance(e, Const):
            self.out.move(dst, e.value)
        else:
            self.out.load(dst, R6, e.offset, e.size)

    def choose(self, condition: Expr, yes: Callable[[], None], no: Callable[[], None] | None) -> None:
        """One or the other; what is missing in the condition makes it false."""
        other, end = Label(), Label()
        self.guarded(condition, other)
        yes()
        if no:
            self.out.jump(end)
        self.out.here(other)
        if no:
            no()
            self.out.here(end)

    def _member(self, ids: Sequence[int], to: Label, sense: bool) -> None:
        """r0 holds the number."""
        out, ranges = self.out, _ranges(ids)
        found, end = (to, Label()) if sense else (Label(), to)
        if len(ranges) > FEW:
            self.tables.member(out, ids, end)
            out.jump(to, "jne" if sense else "jeq", R0, 0, constant=True)
            ranges = []
        for low, high in ranges:
            last = not sense and (low, high) == ranges[-1]
            below = end if last else Label()
            if low != high:
                out.jump(below, "jlt", R0, low, constant=True)
            if last:
                out.jump(end, "jne" if low == high else "jgt", R0, high, constant=True)
            else:
                out.jump(found, "jeq" if low == high else "jle", R0, high, constant=True)
                out.here(below)
        out.here(end if sense else found)

    def _sample(self, n: int, to: Label, sense: bool) -> None:
        """A row that stands for several tasks is in every sample: one of them may be."""
        out, end = self.out, Label()
        out.load(R0, R6, ROW["flags"].offset, 1)
        out.jump(to if sense else end, "jset", R0, FLAG_RANGE, constant=True)
        out.load(R0, R6, ROW["task"].offset, 8)
        out.alu("mul", R0, _MIX[0], constant=True)
        out.copy(R1, R0)
        out.alu("rsh", R1, 32, constant=True)
        out.alu("xor", R0, R1)
        out.alu("mul", R0, _MIX[1], constant=True)
        out.alu("rsh", R0, 32, constant=True)
        out.alu("mod", R0, n, constant=True)
        out.jump(to, "jeq" if sense else "jne", R0, 0, constant=True)
        out.here(end)


def _ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs, both ends inclusive."""
    out: list[tuple[int, int]] = []
    for i in ids:
        if out and out[-1][1] == i - 1:
            out[-1] = out[-1][0], i
        else:
            out.append((i, i))
    return out
