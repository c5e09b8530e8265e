"""Whatever the bytes: refused, or safe. Accepted programs run instrumented, where every fault, every access that the
verdict does not name, every slot that it calls unreachable and every instruction above its cost is raised.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from program_grammar import MAPS, random_program, rows

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.isa import Insn, decode, encode, operation
from megascope.capture.programs.memory import Fault
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Rejected, Verdict
from megascope.capture.programs.verifier import explore, verify

EXIT = (Insn(0xB7, 0, 0, 0, 0), Insn(0x95))


def accepted_and_safe(p: Program, seed: int, events: int = 6) -> bool:
    """Whether the program was accepted: then it must run."""
    try:
        verdict = verify(p)
    except Rejected as e:
        assert 0 <= e.pc < max(len(p.insns), 1)
        assert e.reason
        return False
    execution = Reference(verdict, 1, instrumented=True)
    execution.feed(7, 1, 12, 3)
    for part in (seed, seed + 1):
        try:
            execution.run(rows(part, events), np.zeros(events, np.uint32), 0)
        except Fault as e:
            raise AssertionError(f"seed {seed}: {e}") from e
        execution.close(np.array([0]))
    return True


def grammar(first: int, n: int) -> int:
    return sum(accepted_and_safe(random_program(s, commuting=s % 3 == 0)[0], s) for s in range(first, first + n))


def test_random_programs_are_refused_or_safe_and_many_are_accepted() -> None:
    assert grammar(0, 400) > 160


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_random_programs() -> None:
    assert grammar(10_000, 15_000) > 6_000


def mutated(seed: int) -> Program:
    """An accepted kind of program with some bytes of its code changed."""
    random = Random(seed)
    p = random_program(seed)[0]
    code = bytearray(encode(p.insns))
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(code))
        code[at] = random.choice((code[at] ^ 1 << random.randrange(8), random.randrange(256), 0, 0xFF))
    return Program("mutated", decode(bytes(code)), p.entries, MAPS)


def test_mutated_programs_are_refused_or_safe() -> None:
    assert sum(accepted_and_safe(mutated(s), s, 3) for s in range(400)) > 20


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_mutated_programs() -> None:
    assert sum(accepted_and_safe(mutated(s), s, 3) for s in range(10_000, 20_000)) > 800


OPCODES = tuple(
    Insn(op, 0, src, 0, imm)
    for op in range(256)
    for src in (0, 1)
    for imm in (0, 16, 1, 0xE1)
    if operation(Insn(op, 0, src, 0, imm))
)

WRITTEN = assemble("mov %r0, 1\nmov %r2, 5\nstdw [%r10-8], 1\nstdw [%r10-16], 2")


def byte_string(random: Random) -> Program:
    """Any bytes; or instructions that decode, with random fields, so that more than the first slot is looked at."""
    n = random.randint(1, 6)
    if random.random() < 0.3:
        insns = decode(random.randbytes(8 * n))
    else:
        some = [*WRITTEN]
        for _ in range(n):
            i = random.choice(OPCODES)
            off, imm = random.choice((0, 0, 0, 1, -1, -8, 8, -16)), random.choice((i.imm, i.imm, 0, 1, -8, 5, 1007))
            low, high = random.choice((0, 0, 1, 2, 10)), random.choice((0, 1, 2, 2, 10))
            some.append(i._replace(dst=low, src=high if i.op & 8 or i.op & 7 in (1, 3) else i.src, off=off, imm=imm))
        insns = (*some, *EXIT)
    return Program("bytes", insns, (Entry("at", (4, 6), 0),), MAPS)


def byte_strings(seed: int, n: int) -> int:
    random = Random(seed)
    return sum(accepted_and_safe(byte_string(random), seed + i, 1) for i in range(n))


def test_byte_strings_are_refused_or_safe() -> None:
    assert byte_strings(1, 5_000) > 30


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_million_byte_strings() -> None:
    assert byte_strings(2, 1_000_000) > 6_000


def agrees_without_proofs(seed: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether cutting paths changed nothing. What it lets pass must pass with every path followed to its end; it may
    say more of it than is so, since a proof can be of a state in which less was known.
    """
    p = random_program(seed, commuting=seed % 3 == 0)[0]
    cut = said(p)
    patch.setattr(explore, "MAX_STEPS", 20_000)
    patch.setattr(explore, "TRIED", 0)
    patch.setattr(explore, "CROWDED", 1 << 60)
    whole = said(p)
    patch.undo()
    if isinstance(cut, Verdict) and isinstance(whole, Verdict):
        assert cut.cost[4] >= whole.cost[4], f"seed {seed}"
        assert cut.reachable >= whole.reachable, f"seed {seed}"
        assert cut.access.items() >= whole.access.items(), f"seed {seed}"
        assert whole.simt or not cut.simt, f"seed {seed}"
        return replace(cut, states=0) == replace(whole, states=0)
    if isinstance(cut, Verdict):
        assert "more than" in str(whole), f"seed {seed}: {whole}"
        return False
    return cut == whole


def said(p: Program) -> Verdict | str:
    try:
        return verify(p)
    except Rejected as e:
        return str(e)


def test_cutting_paths_changes_hardly_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(agrees_without_proofs(seed, monkeypatch) for seed in range(200)) > 180


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_cutting_paths_changes_hardly_a_verdict_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(agrees_without_proofs(seed, monkeypatch) for seed in range(10_000, 15_000)) > 4_500
