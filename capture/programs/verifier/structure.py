"""Instructions, one by one and where control can go: decoded once, checked before anything is executed abstractly.

A function is the slots from its begin to the next function's. Control stays inside it but for calls; it never falls out
of the end. Functions call each other without recursion.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ..helpers import HELPER_BY_ID, Helper
from ..isa import R10, Insn, Kind, Operation, Pseudo, operation, target, wide
from ..maps import MapKind
from ..program import MAX_FRAMES, Program
from ..verdict import Rejected
from .values import Scalar, constant


class Op(NamedTuple):
    """A decoded instruction: isa.Operation and isa.Insn in one.

    operand: the immediate, sign-extended; of a 64-bit load all of it. to: slot that a jump, goto or local call goes to.
    """

    kind: Kind
    name: str
    bits: int
    size: int
    register: bool
    fetch: bool
    dst: int
    src: int
    off: int
    imm: int
    operand: Scalar
    to: int
    next: int
    cost: int
    helper: Helper | None


class Loop(NamedTuple):
    """A jump back, from slot `last` to slot `first`."""

    first: int
    last: int


class Code:
    """A program's instructions.

    ops: by slot, None for the second slot of a 64-bit load. starts: first slots of functions, ascending. joins: slots
    that control reaches from several. loops: jumps back. calls: by function's first slot, (slot of a call, callee).
    """

    def __init__(self, program: Program) -> None:
        """Raises Rejected."""
        self.program = program
        self.ops: list[Op | None] = []
        while len(self.ops) < len(program.insns):
            self.ops += self._decode(len(self.ops))
        called = {op.to for op in self.ops if op and op.kind is Kind.CALL and op.register}
        begins = {0, *called, *(f.pc for f in program.functions), *(e.pc for e in program.entries)}
        self.starts = sorted(begins)
        self.ends = dict(zip(self.starts, [*self.starts[1:], len(program.insns)], strict=True))
        for start in self.starts:
            if self.ops[start] is None:
                raise Rejected(program, start, "a function begins inside a 64-bit load")
        self._check_control()
        self.joins = self._find_joins()
        self.loops = sorted({Loop(op.to, pc) for pc, op in enumerate(self.ops) if op and _jumps(op) and op.to <= pc})
        self.calls: dict[int, list[tuple[int, int]]] = {s: [] for s in self.starts}
        for pc, op in enumerate(self.ops):
            if op and op.kind is Kind.CALL and op.register:
                self.calls[self.function(pc)].append((pc, op.to))
        self.callees_first = self._order()

    def function(self, pc: int) -> int:
        """First slot of the function that slot `pc` belongs to."""
        return self.starts[bisect_right(self.starts, pc) - 1]

    def name(self, start: int) -> str:
        """What to call the function that begins there."""
        names = [f.name for f in self.program.functions if f.pc == start]
        names += [e.name for e in self.program.entries if e.pc == start]
        return names[0] if names else f"at {start}"

    def _decode(self, pc: int) -> list[Op | None]:
        program, insn = self.program, self.program.insns[pc]
        means = operation(insn)
        if means is None:
            raise Rejected(program, pc, f"no instruction is encoded so (code {insn.op:#04x}, {_fields(insn)})")
        if means.slots == 2:
            return [self._decode_wide(pc, insn, means), None]
        if means.kind in (Kind.ALU, Kind.SWAP, Kind.LOAD, Kind.LOADSX) and insn.dst == R10:
            raise Rejected(program, pc, "the frame pointer cannot be written", R10)
        if means.kind is Kind.ATOMIC and means.fetch and means.name != "cmpxchg" and insn.src == R10:
            raise Rejected(program, pc, "the frame pointer cannot be written", R10)
        to, helper, cost = -1, None, 1
        if means.kind in (Kind.JUMP, Kind.GOTO):
            to = pc + 1 + target(insn)
        elif means.kind is Kind.CALL and means.register:
            to = pc + 1 + insn.imm
            if not 0 <= to < len(program.insns):
                raise Rejected(program, pc, f"it calls slot {to}, which is not there")
        elif means.kind is Kind.CALL:
            helper = HELPER_BY_ID.get(insn.imm)
            if helper is None:
                raise Rejected(
                    program, pc, f"there is no helper {insn.imm}", todo="program helpers stand in the header"
                )
            cost = helper.cost
        operand = constant(insn.imm)
        return [_op(means, insn, operand, to, pc + 1, cost, helper)]

    def _decode_wide(self, pc: int, insn: Insn, means: Operation) -> Op:
        program = self.program
        if pc + 1 >= len(program.insns) or any(program.insns[pc + 1][:4]):
            raise Rejected(program, pc, "a 64-bit load without its second slot")
        second = program.insns[pc + 1]
        if insn.dst == R10:
            raise Rejected(program, pc, "the frame pointer cannot be written", R10)
        if insn.src != Pseudo.IMMEDIATE:
            if not 0 <= insn.imm < len(program.maps):
                raise Rejected(program, pc, f"there is no map {insn.imm}", insn.dst)
            m = program.maps[insn.imm]
            if insn.src == Pseudo.MAP and second.imm:
                raise Rejected(program, pc, f"map {m.name} with an offset, which only a value has", insn.dst)
            if insn.src == Pseudo.VALUE:
                if m.kind != MapKind.ARRAY or m.max_entries != 1:
                    raise Rejected(
                        program, pc, f"map {m.name} has no single value whose address this could be", insn.dst
                    )
                if not 0 <= second.imm < m.value_size:
                    where = f"offset {second.imm} is outside the {m.value_size} bytes of {m.name}"
                    raise Rejected(program, pc, where, insn.dst)
        operand = constant(second.imm if insn.src == Pseudo.VALUE else wide(insn, second))
        return _op(means, insn, operand, -1, pc + 2, 1, None)

    def _check_control(self) -> None:
        """Jumps stay inside their function and hit the begin of an instruction; no function falls out of its end."""
        program = self.program
        for start, end in self.ends.items():
            final = start
            for pc in range(start, end):
                op = self.ops[pc]
                if op is None:
                    continue
                final = pc
                if _jumps(op):
                    if not start <= op.to < end:
                        raise Rejected(
                            program, pc, f"it jumps to slot {op.to}, outside its function ({start} to {end - 1})"
                        )
                    if self.ops[op.to] is None:
                        raise Rejected(program, pc, f"it jumps to slot {op.to}, inside a 64-bit load")
            last = self.ops[final]
            if last is None or last.kind not in (Kind.EXIT, Kind.GOTO):
                raise Rejected(program, final, f"function {self.name(start)} does not end in exit or ja")

    def _find_joins(self) -> list[bool]:
        sources = [0] * len(self.ops)
        for start in self.starts:
            sources[start] = 1
        for op in self.ops:
            if op is None:
                continue
            if op.to >= 0 and op.kind is not Kind.CALL:
                sources[op.to] += 1
            if op.kind not in (Kind.GOTO, Kind.EXIT):
                # several exits of a function come back to one place
                sources[op.next] += 2 if op.kind is Kind.CALL and op.register else 1
        return [n > 1 for n in sources]

    def _order(self) -> list[int]:
        """Functions, each after those that it calls. Raises Rejected for recursion and for calls that go too deep."""
        depth: dict[int, int] = {}
        for start in self.starts:
            self._descend(start, (), depth)
        return list(depth)

    def _descend(self, start: int, chain: tuple[int, ...], depth: dict[int, int]) -> None:
        # the chain is bounded by MAX_FRAMES, and so is the recursion here
        deepest = 0
        for pc, callee in self.calls[start]:
            if callee == start or callee in chain:
                raise Rejected(self.program, pc, f"function {self.name(callee)} can come to call itself: no recursion")
            if len(chain) + 2 > MAX_FRAMES:
                raise Rejected(self.program, pc, f"calls are more than {MAX_FRAMES} functions deep")
            if callee not in depth:
                self._descend(callee, (*chain, start), depth)
            deepest = max(deepest, depth[callee])
            if deepest + 1 > MAX_FRAMES:
                raise Rejected(self.program, pc, f"calls are more than {MAX_FRAMES} functions deep")
        depth[start] = deepest + 1


def _jumps(op: Op) -> bool:
    return op.kind in (Kind.JUMP, Kind.GOTO)


def _fields(insn: Insn) -> str:
    return f"registers {insn.dst} and {insn.src}, off {insn.off}, imm {insn.imm}"


def _op(means: Operation, i: Insn, operand: Scalar, to: int, after: int, cost: int, helper: Helper | None) -> Op:
    return Op(
        means.kind,
        means.name,
        means.bits,
        means.size,
        means.register,
        means.fetch,
        i.dst,
        i.src,
        i.off,
        i.imm,
        operand,
        to,
        after,
        cost,
        helper,
    )
