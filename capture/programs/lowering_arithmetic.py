"""eBPF arithmetic, comparisons and atomics in LLVM assembly, with every corner case guarded.

LLVM leaves undefined what eBPF defines (RFC 9669): division by zero gives 0 and modulo by zero the dividend; the
smallest number divided by -1 wraps; shift amounts are masked; 32-bit results are zero-extended, those of movsx too.
"""

from __future__ import annotations

from .isa import Operation
from .llvm_text import Text, narrow, sign_extend, zero_extend

_PLAIN = {"add": "add", "sub": "sub", "mul": "mul", "or": "or", "and": "and", "xor": "xor"}
_SHIFTS = {"lsh": "shl", "rsh": "lshr", "arsh": "ashr"}
_PREDICATES = {
    "jeq": "eq",
    "jne": "ne",
    "jgt": "ugt",
    "jge": "uge",
    "jlt": "ult",
    "jle": "ule",
    "jsgt": "sgt",
    "jsge": "sge",
    "jslt": "slt",
    "jsle": "sle",
}


def alu(text: Text, op: Operation, a: str, b: str) -> str:
    """The result of an ALU operation: a the old dst, b the operand; all of 64 bits."""
    bits = op.bits
    if op.name == "mov":
        return zero_extend(text, narrow(text, b, bits), bits)
    if op.name == "movsx":
        extended = sign_extend(text, narrow(text, b, 8 * op.size), 8 * op.size)
        return zero_extend(text, narrow(text, extended, bits), bits)
    left = narrow(text, a, bits)
    if op.name == "neg":
        result = text.let(f"sub i{bits} 0, {left}")
    elif op.name in _PLAIN:
        result = text.let(f"{_PLAIN[op.name]} i{bits} {left}, {narrow(text, b, bits)}")
    elif op.name in _SHIFTS:
        amount = text.let(f"and i{bits} {narrow(text, b, bits)}, {bits - 1}")
        result = text.let(f"{_SHIFTS[op.name]} i{bits} {left}, {amount}")
    else:
        result = _divide(text, op.name, bits, left, narrow(text, b, bits))
    return zero_extend(text, result, bits)


def _divide(text: Text, name: str, bits: int, a: str, b: str) -> str:
    """div, mod, sdiv or smod. The machine divides by 1 wherever it would trap."""
    kind, signed_ = f"i{bits}", name.startswith("s")
    zero = text.let(f"icmp eq {kind} {b}, 0")
    trap = zero
    if signed_:
        minus = text.let(f"icmp eq {kind} {b}, -1")
        trap = text.let(f"or i1 {zero}, {minus}")
    divisor = text.let(f"select i1 {trap}, {kind} 1, {kind} {b}")
    if name in ("mod", "smod"):
        # By -1 the remainder is 0, as it is by 1.
        rest = text.let(f"{'srem' if signed_ else 'urem'} {kind} {a}, {divisor}")
        return text.let(f"select i1 {zero}, {kind} {a}, {kind} {rest}")
    quotient = text.let(f"{'sdiv' if signed_ else 'udiv'} {kind} {a}, {divisor}")
    if signed_:
        negated = text.let(f"sub {kind} 0, {a}")
        quotient = text.let(f"select i1 {minus}, {kind} {negated}, {kind} {quotient}")
    return text.let(f"select i1 {zero}, {kind} 0, {kind} {quotient}")


def swap(text: Text, op: Operation, a: str) -> str:
    """le, be or bswap of the low bits, the rest zero. Every target here is little-endian, where `le` only truncates."""
    low = narrow(text, a, op.bits)
    if op.name != "le":
        low = text.let(f"call i{op.bits} @llvm.bswap.i{op.bits}(i{op.bits} {low})")
    return zero_extend(text, low, op.bits)


def condition(text: Text, op: Operation, a: str, b: str) -> str:
    """An i1: whether the jump is taken."""
    kind, left, right = f"i{op.bits}", narrow(text, a, op.bits), narrow(text, b, op.bits)
    if op.name == "jset":
        both = text.let(f"and {kind} {left}, {right}")
        return text.let(f"icmp ne {kind} {both}, 0")
    return text.let(f"icmp {_PREDICATES[op.name]} {kind} {left}, {right}")


def atomic(text: Text, op: Operation, pointer: str, source: str, expected: str, align: int) -> str:
    """Do an atomic operation and give the old value, zero-extended. `expected` is r0, for cmpxchg.

    Plain loads and stores: nothing else touches a program's memory while it runs on the host.
    """
    kind = f"i{op.bits}"
    old = text.let(f"load {kind}, ptr {pointer}, align {align}")
    new = narrow(text, source, op.bits)
    if op.name == "cmpxchg":
        same = text.let(f"icmp eq {kind} {old}, {narrow(text, expected, op.bits)}")
        new = text.let(f"select i1 {same}, {kind} {new}, {kind} {old}")
    elif op.name != "xchg":
        new = text.let(f"{_PLAIN[op.name]} {kind} {old}, {new}")
    text.do(f"store {kind} {new}, ptr {pointer}, align {align}")
    return zero_extend(text, old, op.bits)


DECLARATIONS = "".join(f"declare i{n} @llvm.bswap.i{n}(i{n})\n" for n in (16, 32, 64))
