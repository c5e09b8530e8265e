"""Conformance and corner cases in machine code. Each batch runs in a process of its own: wrong code ends a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import EXCLUDED, MISSING, cases

from megascope.capture.programs import arithmetic
from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.native_raw import run_raw

HERE = Path(__file__).resolve().parent
RUNNER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from conformance import EXCLUDED, cases
from megascope.capture.programs.native_raw import run_raw
for case in cases():
    if case.name not in EXCLUDED:
        print(json.dumps([case.name]), flush=True)
        got = run_raw(case.insns, bytearray(case.memory), thorough=sys.argv[2] == "thorough")
        print(json.dumps([case.name, got]), flush=True)
"""


@pytest.mark.skipif(not cases(), reason=MISSING)
@pytest.mark.parametrize("how", ["quick", "thorough"])
def test_conformance(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(HERE), how], capture_output=True, text=True, timeout=200, check=False
    )
    lines = [json.loads(x) for x in done.stdout.splitlines()]
    assert done.returncode == 0, f"the process ended in {lines[-1] if lines else 'the beginning'}: {done.stderr[-500:]}"
    got = {name: rest[0] for name, *rest in lines if rest}
    assert got == {c.name: c.result for c in cases() if c.name not in EXCLUDED}
    assert len(got) == 313 - len(EXCLUDED)


M64, M32, MIN64, MIN32 = (1 << 64) - 1, (1 << 32) - 1, 1 << 63, 1 << 31
ONES32 = 0xFFFFFFFF_00000000
CORNERS = [
    # operation, dst, src, result
    ("add", M64, 1, 0),
    ("add32", ONES32 | M32, 1, 0),
    ("sub", 0, 1, M64),
    ("sub32", ONES32, 1, M32),
    ("mul", MIN64, 2, 0),
    ("mul32", ONES32 | MIN32, M64, MIN32),
    ("div", 5, 0, 0),
    ("div", M64, 2, M64 >> 1),
    ("div32", ONES32 | 5, ONES32, 0),
    ("div32", ONES32 | 7, ONES32 | 2, 3),
    ("mod", 5, 0, 5),
    ("mod", M64, 10, 5),
    ("mod32", ONES32 | 5, ONES32, 5),
    ("sdiv", MIN64, M64, MIN64),
    ("sdiv", MIN64, 0, 0),
    ("sdiv", M64 - 6, 2, M64 - 2),
    ("sdiv32", MIN32, M32, MIN32),
    ("sdiv32", M32 - 6, 2, M32 - 2),
    ("sdiv32", ONES32 | 9, ONES32, 0),
    ("smod", MIN64, M64, 0),
    ("smod", M64 - 6, 0, M64 - 6),
    ("smod", M64 - 6, 4, M64 - 2),
    ("smod32", MIN32, M32, 0),
    ("smod32", ONES32 | MIN32, 0, MIN32),
    ("smod32", 7, M32 - 3, 3),
    ("lsh", 1, 64, 1),
    ("lsh", 1, 65, 2),
    ("lsh", 3, 63, MIN64),
    ("lsh32", 1, 32, 1),
    ("lsh32", M64, 31, MIN32),
    ("rsh", MIN64, 127, 1),
    ("rsh32", ONES32 | MIN32, 63, 1),
    ("arsh", MIN64, 63, M64),
    ("arsh", MIN64, 64, MIN64),
    ("arsh32", MIN32, 31, M32),
    ("arsh32", ONES32 | 0x7FFFFFFF, 30, 1),
    ("or32", ONES32 | 1, 2, 3),
    ("and32", M64, ONES32 | 6, 6),
    ("xor32", M64, 1, M32 - 1),
    ("mov32", 0, M64, M32),
    ("neg", MIN64, 0, MIN64),
    ("neg", 1, 0, M64),
    ("neg32", ONES32 | 1, 0, M32),
    ("movsx864", 0, 0x180, M64 - 127),
    ("movsx1664", 0, 0x18000, M64 - 0x7FFF),
    ("movsx3264", 0, MIN32, M64 - 0x7FFFFFFF),
    ("movsx832", 0, 0x80, M32 - 127),
    ("movsx1632", 0, 0x8000, M32 - 0x7FFF),
    ("le16", 0x0123456789ABCDEF, 0, 0xCDEF),
    ("le32", 0x0123456789ABCDEF, 0, 0x89ABCDEF),
    ("le64", 0x0123456789ABCDEF, 0, 0x0123456789ABCDEF),
    ("be16", 0x0123456789ABCDEF, 0, 0xEFCD),
    ("be32", 0x0123456789ABCDEF, 0, 0xEFCDAB89),
    ("be64", 0x0123456789ABCDEF, 0, 0xEFCDAB8967452301),
    ("bswap16", 0x0123456789ABCDEF, 0, 0xEFCD),
    ("bswap32", 0x0123456789ABCDEF, 0, 0xEFCDAB89),
    ("bswap64", 0x0123456789ABCDEF, 0, 0xEFCDAB8967452301),
]
ONE_OPERAND = ("neg", "le", "be", "bswap")


def line(operation: str) -> str:
    return f"{operation} %r3" if operation.startswith(ONE_OPERAND) else f"{operation} %r3, %r4"


def run_pairs(operation: str, pairs: list[tuple[int, int]], *, thorough: bool = False) -> list[int]:
    """The operation on each pair, in one run over memory: dst, src, result."""
    memory = bytearray(b"".join(a.to_bytes(8, "little") + b.to_bytes(8, "little") + bytes(8) for a, b in pairs))
    text = f"""
        add %r2, %r1
        again: ldxdw %r3, [%r1+0]
        ldxdw %r4, [%r1+8]
        {line(operation)}
        stxdw [%r1+16], %r3
        add %r1, 24
        jlt %r1, %r2, again
        mov %r0, 0
        exit
    """
    run_raw(assemble(text), memory, thorough=thorough)
    return [int.from_bytes(memory[i + 16 : i + 24], "little") for i in range(0, len(memory), 24)]


@pytest.mark.parametrize("operation", sorted({c[0] for c in CORNERS}))
def test_corner_cases(operation: str) -> None:
    mine = [c for c in CORNERS if c[0] == operation]
    want = [c[3] for c in mine]
    assert run_pairs(operation, [(c[1], c[2]) for c in mine]) == want
    assert run_pairs(operation, [(c[1], c[2]) for c in mine], thorough=True) == want


@pytest.mark.parametrize(("operation", "dst", "src", "want"), CORNERS)
def test_corner_cases_known_when_compiled(operation: str, dst: int, src: int, want: int) -> None:
    """Constants are folded by the lowering and by LLVM, which must come to the same."""
    assert (
        run_raw(assemble(f"lddw %r3, {dst}\nlddw %r4, {src}\n{line(operation)}\nmov %r0, %r3\nexit"), bytearray())
        == want
    )


EDGES = [
    0,
    1,
    2,
    31,
    32,
    63,
    64,
    127,
    128,
    0x7FFF,
    0x8000,
    0x7FFFFFFF,
    MIN32,
    M32,
    1 << 32,
    ONES32,
    MIN64 - 1,
    MIN64,
    M64,
]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "mov"]
)
def test_every_pair_of_edges(name: str, bits: int) -> None:
    pairs = [(a, b) for a in EDGES for b in EDGES]
    got = run_pairs(name + ("32" if bits == 32 else ""), pairs)
    assert got == [arithmetic.alu(name, bits, a, b) for a, b in pairs]


JUMPS = ["jeq", "jne", "jgt", "jge", "jlt", "jle", "jsgt", "jsge", "jslt", "jsle", "jset"]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", JUMPS)
def test_every_comparison_of_edges(name: str, bits: int) -> None:
    pairs = [(a, b) for a in EDGES for b in EDGES]
    memory = bytearray(b"".join(a.to_bytes(8, "little") + b.to_bytes(8, "little") + bytes(8) for a, b in pairs))
    text = f"""
        add %r2, %r1
        again: ldxdw %r3, [%r1+0]
        ldxdw %r4, [%r1+8]
        {name}{"32" if bits == 32 else ""} %r3, %r4, yes
        ja next
        yes: stdw [%r1+16], 1
        next: add %r1, 24
        jlt %r1, %r2, again
        mov %r0, 0
        exit
    """
    run_raw(assemble(text), memory)
    got = [memory[i + 16] == 1 for i in range(0, len(memory), 24)]
    assert got == [arithmetic.holds(name, bits, a, b) for a, b in pairs]


ATOMICS = [
    # instruction, memory, r3, r0 before; memory, r3, r0 after
    ("lock add [%r1+0], %r3", M64, 2, 0, 1, 2, 0),
    ("lock add32 [%r1+0], %r3", M64, ONES32 | 2, 0, ONES32 | 1, ONES32 | 2, 0),
    ("lock fetch add [%r1+0], %r3", 5, M64, 0, 4, 5, 0),
    ("lock fetch add32 [%r1+0], %r3", ONES32 | 5, M64, 0, ONES32 | 4, 5, 0),
    ("lock or [%r1+0], %r3", 8, 1, 0, 9, 1, 0),
    ("lock fetch or32 [%r1+0], %r3", ONES32 | 8, ONES32 | 1, 0, ONES32 | 9, 8, 0),
    ("lock and [%r1+0], %r3", 12, 10, 0, 8, 10, 0),
    ("lock fetch and [%r1+0], %r3", 12, 10, 0, 8, 12, 0),
    ("lock xor32 [%r1+0], %r3", M64, 1, 0, M64 - 1, 1, 0),
    ("lock fetch xor [%r1+0], %r3", M64, 1, 0, M64 - 1, M64, 0),
    ("lock xchg [%r1+0], %r3", 7, 8, 0, 8, 7, 0),
    ("lock xchg32 [%r1+0], %r3", ONES32 | 7, ONES32 | 8, 0, ONES32 | 8, 7, 0),
    ("lock cmpxchg [%r1+0], %r3", 7, 8, 7, 8, 8, 7),
    ("lock cmpxchg [%r1+0], %r3", 7, 8, 6, 7, 8, 7),
    ("lock cmpxchg32 [%r1+0], %r3", ONES32 | 7, 8, M64 - M32 | 7, ONES32 | 8, 8, 7),
    ("lock cmpxchg32 [%r1+0], %r3", ONES32 | 7, 8, 9, ONES32 | 7, 8, 7),
]


@pytest.mark.parametrize("case", ATOMICS)
def test_atomics(case: tuple[str, int, int, int, int, int, int]) -> None:
    instruction, *numbers = case
    memory = bytearray(b"".join(x.to_bytes(8, "little") for x in numbers[:3]))
    text = f"""
        ldxdw %r3, [%r1+8]
        ldxdw %r0, [%r1+16]
        {instruction}
        stxdw [%r1+8], %r3
        exit
    """
    r0 = run_raw(assemble(text), memory)
    assert [int.from_bytes(memory[i : i + 8], "little") for i in (0, 8)] + [r0] == numbers[3:]
