"""Verifying programs, and lowering them to native code: milliseconds of CPU, median of several.

    python benchmarks/verify.py [OBJECT]…        (default: the standard monitors)

Beside the objects: a program of 200 instructions like those that queries compile to, a hundred branches in a row, a
hundred branches that decide each other, and a loop of a thousand rounds. Lowering is that of the host engine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.histogram import VALUE_BYTES
from megascope.capture.programs.loader import load
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.native import Native
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.verifier import verify

STANDARD = Path(__file__).resolve().parent.parent / "capture" / "programs" / "standard"
TIMES = 9
MAPS = (
    Map("lat", MapKind.HIST, 4, VALUE_BYTES, 256, aggregate=True),
    Map("counts", MapKind.HASH, 4, 8, 256, aggregate=True),
)


def synthetic(name: str, text: str) -> Program:
    code = assemble(text, {m.name: i for i, m in enumerate(MAPS)})
    return Program(name, code, (Entry("at", (4,), 0),), MAPS)


def two_hundred() -> str:
    """Clauses of the kind `complete /class == 3 && exec_ns > 20us/ { @lat[class] = hist(exec_ns) }`."""
    clauses = ""
    for i in range(8):
        clauses += f"""
            ldxh %r7, [%r6+52]
            jne %r7, {i}, next{i}
            ldxdw %r8, [%r6+0]
            ldxdw %r9, [%r6+24]
            jgt %r9, %r8, next{i}
            sub %r8, %r9
            jlt %r8, 20000, next{i}
            stxw [%r10-4], %r7
            mov %r2, %r10
            add %r2, -4
            lddw %r1, map:lat
            mov %r3, %r8
            call hist_add
            ldxw %r7, [%r6+32]
            rsh %r7, 3
            and %r7, 0xff
            stxw [%r10-8], %r7
            mov %r2, %r10
            add %r2, -8
            lddw %r1, map:counts
            mov %r3, 1
            call map_add
    next{i}:"""
    return f"mov %r6, %r1\n{clauses}\nmov %r0, 0\nexit"


def programs(paths: list[str]) -> Iterator[tuple[str, Program]]:
    yield "200 instructions", synthetic("clauses", two_hundred())
    fresh = "".join(f"ldxw %r2, [%r6+32]\njgt %r2, {i}, +1\nadd %r7, {i}\n" for i in range(100))
    yield "100 branches", synthetic("fresh", f"mov %r6, %r1\nmov %r7, 0\n{fresh}mov %r0, %r7\nexit")
    bits = "".join(f"jset %r6, {1 << i % 31}, +1\nadd %r7, {i}\n" for i in range(100))
    yield "100 that decide each other", synthetic("bits", f"ldxdw %r6, [%r1+24]\nmov %r7, 0\n{bits}mov %r0, %r7\nexit")
    loop = (
        "mov %r0, 0\nldxdw %r7, [%r1+0]\nmov %r6, 0\nl: jset %r7, 8, +1\nadd %r0, 5\nadd %r6, 1\njlt %r6, 1000, l\nexit"
    )
    yield "1000 rounds", synthetic("loop", loop)
    for path in paths or sorted(map(str, STANDARD.glob("*.o"))):
        yield Path(path).name, load(path)


def milliseconds(act: Callable[[], Any]) -> float:
    spent = []
    for _ in range(TIMES):
        begin = time.process_time()
        act()
        spent.append((time.process_time() - begin) * 1e3)
    return median(spent)


def main(paths: list[str]) -> None:
    Native(verify(synthetic("warm", "mov %r0, 0\nexit")), 1)
    print(f"{'program':28}{'slots':>7}{'steps':>8}{'verify ms':>11}{'lower ms':>10}{'both ms':>9}")
    for name, program in programs(paths):
        verdict = verify(program)
        verified, lowered = milliseconds(lambda p=program: verify(p)), milliseconds(lambda v=verdict: Native(v, 1))
        steps = f"{len(program.insns):>7}{verdict.states:>8}"
        print(f"{name:28}{steps}{verified:>11.1f}{lowered:>10.1f}{verified + lowered:>9.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
