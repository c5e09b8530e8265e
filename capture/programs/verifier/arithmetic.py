"""Instructions that compute in registers: numbers by `transfer`, pointers only moved, and offset by bounded numbers.

Each function executes one instruction on a `Walk` and returns its `needs.Step`; any may raise Rejected.
"""

from __future__ import annotations

from ..isa import Pseudo
from .needs import Step
from .registers import BOUND, CHECKED, Pointer, To
from .structure import Op
from .transfer import alu, sign_extend, swap
from .values import Scalar, text
from .walk import Walk

_BOUND_IT = "compare or mask it before"


def compute(walk: Walk, op: Op) -> Step:
    """Kind.ALU."""
    if op.name == "mov":
        return _move(walk, op)
    dst = walk.place(op.dst)
    if op.name == "movsx":
        walk.registers[op.dst] = sign_extend(walk.number(op.src, "is sign-extended"), op.size, op.bits)
        return dst, walk.place(op.src), dst, walk.place(op.src), 0
    a = walk.read(op.dst)
    if op.name == "neg":
        number = walk.number(op.dst, "is negated")
        walk.registers[op.dst] = alu("neg", op.bits, number, number)
        return 0, dst, 0, 0, 0
    b = walk.read(op.src) if op.register else op.operand
    read = dst | walk.place(op.src) if op.register else dst
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        walk.registers[op.dst] = alu(op.name, op.bits, a, b)
        return 0, read, dst, read, 0
    return _offset(walk, op, a, b, read)


def _move(walk: Walk, op: Op) -> Step:
    dst = walk.place(op.dst)
    if not op.register:
        walk.registers[op.dst] = alu("mov", op.bits, op.operand, op.operand)
        return dst, 0, 0, 0, 0
    content = walk.read(op.src)
    if isinstance(content, Scalar):
        content = alu("mov", op.bits, content, walk.copied(op.src, content))
    elif op.bits == 32:
        raise walk.rejected(
            f"the low half of {walk.describe(op.src)} is taken; what a pointer is must not show", op.src
        )
    walk.registers[op.dst] = content
    src = walk.place(op.src)
    return dst, src, dst, src, 0


def _offset(walk: Walk, op: Op, a: Scalar | Pointer, b: Scalar | Pointer, read: int) -> Step:
    """dst += src or dst -= src, where one is a pointer."""
    blamed = op.dst if isinstance(a, Pointer) else op.src
    pointer, number = (a, b) if isinstance(a, Pointer) else (b, a)
    if op.name not in ("add", "sub") or op.bits == 32:
        what = f"{walk.describe(blamed)} is an operand of {op.name}{' in 32 bits' if op.bits == 32 else ''}"
        raise walk.rejected(f"{what}; a pointer takes add and sub in 64 bits only", blamed)
    if not isinstance(pointer, Pointer) or not isinstance(number, Scalar):
        raise walk.rejected(f"two pointers are {'added' if op.name == 'add' else 'subtracted'}", op.src)
    if op.name == "sub" and isinstance(b, Pointer):
        raise walk.rejected(
            f"{walk.describe(op.src)} is subtracted from a number; what a pointer is must not show", op.src
        )
    if pointer.to in CHECKED:
        raise walk.rejected(f"{walk.describe(blamed)} gets an offset", blamed, "compare it with 0 before")
    if pointer.to is To.MAP:
        raise walk.rejected(f"{walk.describe(blamed)} gets an offset", blamed)
    offset = alu(op.name, 64, pointer.offset, number)
    if not (number.smin > -BOUND and number.smax < BOUND):
        culprit = op.src if op.register and isinstance(a, Pointer) else op.dst
        raise walk.rejected(f"a pointer is offset by {text(number)}, which can be {BOUND} or more", culprit, _BOUND_IT)
    if not (offset.smin > -BOUND and offset.smax < BOUND):
        raise walk.rejected(f"a pointer gets the offset {text(offset)}, which can be {BOUND} or more", op.dst)
    walk.registers[op.dst] = Pointer(pointer.to, offset, pointer.map, pointer.ident)
    # the address was proven with the number's range: it was needed exactly
    if not op.register:
        return 0, read, 0, 0, 0
    return 0, read, 0, 0, walk.place(op.src if isinstance(a, Pointer) else op.dst)


def swap_bytes(walk: Walk, op: Op) -> Step:
    """Kind.SWAP."""
    dst = walk.place(op.dst)
    walk.registers[op.dst] = swap(op.name, op.bits, walk.number(op.dst, f"is taken apart by {op.name}"))
    return 0, dst, dst, dst, 0


def load_wide(walk: Walk, op: Op) -> Step:
    """Kind.WIDE."""
    content: Scalar | Pointer = op.operand
    if op.src == Pseudo.MAP:
        content = Pointer(To.MAP, map=op.imm)
    elif op.src == Pseudo.VALUE:
        content = Pointer(To.VALUE, op.operand, op.imm)
    walk.registers[op.dst] = content
    return walk.place(op.dst), 0, 0, 0, 0
