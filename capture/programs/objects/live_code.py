"""Which instructions can run at all, as far as constants tell: what a program asked of the ABI decides its branches.

Constants are followed through registers, forward, joined where paths meet. It errs towards "can run": the verifier
knows more, but it comes later and does not know what the loader has put in the place of a missing field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..isa import REGISTERS, Insn, Kind, Operation, operation, target, wide

_Registers = tuple[int | None, ...]
_UNKNOWN: _Registers = (None,) * REGISTERS
_M64 = (1 << 64) - 1


def live(insns: Sequence[Insn], begins: Sequence[int]) -> set[int]:
    """Slots that can run from any of `begins` on, calls followed."""
    states: dict[int, _Registers] = {}
    work = list(begins)
    for pc in begins:
        states[pc] = _UNKNOWN
    while work:
        pc = work.pop()
        for to, registers in _after(insns, pc, states[pc]):
            if not 0 <= to < len(insns):
                continue  # the verifier refuses it
            old = states.get(to)
            new = registers if old is None else _join(old, registers)
            if new != old:
                states[to] = new
                work.append(to)
    return set(states)


def _join(a: _Registers, b: _Registers) -> _Registers:
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _after(insns: Sequence[Insn], pc: int, r: _Registers) -> list[tuple[int, _Registers]]:
    """Where execution goes from `pc`, with which constants."""
    insn = insns[pc]
    op = operation(insn)
    if op is None or op.kind == Kind.EXIT:
        return []
    on = pc + op.slots
    match op.kind:
        case Kind.GOTO:
            return [(on + target(insn), r)]
        case Kind.JUMP:
            taken = _compare(op, insn, r)
            ways = [(on, r)] if taken is not True else []
            return ways + ([(on + target(insn), r)] if taken is not False else [])
        case Kind.CALL:
            after = (None,) * 6 + r[6:]
            return [(on, after), (on + insn.imm, _UNKNOWN)] if op.register else [(on, after)]
        case Kind.ALU:
            return [(on, _set(r, insn.dst, _compute(op, insn, r)))]
        case Kind.WIDE:
            value = wide(insn, insns[pc + 1]) if insn.src == 0 and on <= len(insns) else None
            return [(on, _set(r, insn.dst, value))]
        case Kind.ATOMIC:
            return [(on, _set(_set(r, insn.src, None), 0, None))]
        case Kind.LOAD | Kind.LOADSX | Kind.SWAP:
            return [(on, _set(r, insn.dst, None))]
    return [(on, r)]


def _set(r: _Registers, register: int, value: int | None) -> _Registers:
    return (*r[:register], value, *r[register + 1 :])


_COMPUTE: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "and": lambda a, b, _: a & b,
    "or": lambda a, b, _: a | b,
    "xor": lambda a, b, _: a ^ b,
    "lsh": lambda a, b, bits: a << (b & bits - 1),
    "rsh": lambda a, b, bits: a >> (b & bits - 1),
    "mov": lambda _, b, __: b,
}
"""By name: (dst, operand, bits) → dst, before it is cut to its bits. What is not here is not known."""


def _compute(op: Operation, insn: Insn, r: _Registers) -> int | None:
    a, b = r[insn.dst], r[insn.src] if op.register else insn.imm & _M64
    how, mask = _COMPUTE.get(op.name), (1 << op.bits) - 1
    if how is None or b is None or (a is None and op.name != "mov"):
        return None
    return how((a or 0) & mask, b & mask, op.bits) & mask


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "jeq": lambda a, b: a == b,
    "jne": lambda a, b: a != b,
    "jgt": lambda a, b: a > b,
    "jge": lambda a, b: a >= b,
    "jlt": lambda a, b: a < b,
    "jle": lambda a, b: a <= b,
    "jset": lambda a, b: a & b != 0,
}


def _compare(op: Operation, insn: Insn, r: _Registers) -> bool | None:
    """Whether a jump is taken; None: not known."""
    a, b = r[insn.dst], r[insn.src] if op.register else insn.imm & _M64
    if a is None or b is None:
        return None
    mask = (1 << op.bits) - 1
    a, b, name = a & mask, b & mask, op.name
    if name.startswith("js") and name != "jset":
        flip = 1 << op.bits - 1
        a, b, name = a ^ flip, b ^ flip, "j" + name[2:]
    return _COMPARE[name](a, b)
