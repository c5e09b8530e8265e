"""What the operations of eBPF compute, on whole numbers: 64-bit registers as unsigned.

Division by zero gives 0, modulo by zero the dividend, the smallest number by -1 wraps, shift counts are masked, and a
32-bit result has zeros above it. Source: RFC 9669.
"""

from __future__ import annotations

U64_MAX = (1 << 64) - 1


def unsigned(value: int, bits: int = 64) -> int:
    """The low bits of a number."""
    return value & (1 << bits) - 1


def signed(value: int, bits: int = 64) -> int:
    """The low bits of a number, as two's complement."""
    value = unsigned(value, bits)
    return value - (1 << bits) if value >> bits - 1 else value


def alu(name: str, bits: int, a: int, b: int) -> int:
    """`a name b`, for every ALU operation but `movsx`; of `mov` and `neg`, what becomes of b and of a."""
    return unsigned(_alu(name, bits, unsigned(a, bits), unsigned(b, bits)), bits)


def _alu(name: str, bits: int, a: int, b: int) -> int:
    match name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return a // b if b else 0
        case "mod":
            return a % b if b else a
        case "sdiv":
            return _quotient(signed(a, bits), signed(b, bits))
        case "smod":
            return signed(a, bits) - _quotient(signed(a, bits), signed(b, bits)) * signed(b, bits)
        case "or":
            return a | b
        case "and":
            return a & b
        case "xor":
            return a ^ b
        case "lsh":
            return a << (b & bits - 1)
        case "rsh":
            return a >> (b & bits - 1)
        case "arsh":
            return signed(a, bits) >> (b & bits - 1)
        case "mov":
            return b
        case "neg":
            return -a
    raise ValueError(f"{name} is no ALU operation")


def _quotient(a: int, b: int) -> int:
    """Rounds to zero, unlike Python's own."""
    if b == 0:
        return 0
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def swap(name: str, bits: int, value: int) -> int:
    """le, be or bswap of the low bits; registers are little-endian, so that le only cuts."""
    low = unsigned(value, bits)
    return low if name == "le" else int.from_bytes(low.to_bytes(bits // 8, "little"), "big")


def holds(name: str, bits: int, a: int, b: int) -> bool:
    """`a name b` of a conditional jump."""
    if name.startswith("js") and name != "jset":
        a, b, name = signed(a, bits), signed(b, bits), "j" + name[2:]
    else:
        a, b = unsigned(a, bits), unsigned(b, bits)
    match name:
        case "jeq":
            return a == b
        case "jne":
            return a != b
        case "jset":
            return a & b != 0
        case "jgt":
            return a > b
        case "jge":
            return a >= b
        case "jlt":
            return a < b
        case "jle":
            return a <= b
    raise ValueError(f"{name} is no comparison")
