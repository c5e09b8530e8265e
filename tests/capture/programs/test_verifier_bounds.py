"""The work of verifying: many paths cost few steps, and whatever is too much ends in a clear rejection."""

from __future__ import annotations

import pytest
from verifier_table import program

from megascope.capture.programs.verdict import Rejected, Verdict
from megascope.capture.programs.verifier import verify
from megascope.capture.programs.verifier.explore import MAX_COST, MAX_STEPS


def verdict(text: str) -> Verdict:
    return verify(program(text))


def refused(text: str) -> str:
    with pytest.raises(Rejected) as e:
        verdict(text)
    return e.value.reason


def test_a_hundred_branches_on_fresh_data() -> None:
    branches = "".join(f"ldxw %r2, [%r6+32]\njgt %r2, {i}, +1\nadd %r7, {i}\n" for i in range(100))
    v = verdict(f"mov %r6, %r1\nmov %r7, 0\n{branches}mov %r0, %r7\nexit")
    assert v.states < 1_000
    assert v.cost == v.batch_cost == {4: 304}


def test_sixty_branches_on_bits_of_one_number() -> None:
    branches = "".join(f"lddw %r3, {1 << i}\njset %r6, %r3, +1\nadd %r7, {i}\n" for i in range(60))
    assert verdict(f"ldxdw %r6, [%r1+24]\nmov %r7, 0\n{branches}mov %r0, %r7\nexit").states < 1_000


def test_a_hundred_branches_that_decide_each_other() -> None:
    """Bits tested three times over: what the first test showed decides the others, in 2^33 ways."""
    branches = "".join(f"jset %r6, {1 << i % 31}, +1\nadd %r7, {i}\n" for i in range(100))
    v = verdict(f"ldxdw %r6, [%r1+24]\nmov %r7, 0\n{branches}mov %r0, %r7\nexit")
    assert v.states < MAX_STEPS
    assert v.cost == {4: 204}


def test_a_table_of_a_hundred_cases_that_is_used_as_an_offset() -> None:
    table = "".join(f"jne %r6, {i}, +2\nmov %r7, {i}\nja out\n" for i in range(100))
    use = "out: mov %r8, %r10\nadd %r8, -128\nadd %r8, %r7\nstb [%r8+0], 1\nend"
    assert verdict(f"ldxb %r6, [%r1+60]\nmov %r7, 0\n{table}{use}").stack == 128


def test_a_hundred_spilled_numbers() -> None:
    branches = "".join(
        f"ldxw %r2, [%r6+32]\njgt %r2, {i}, +1\nstxdw [%r10-{8 + 8 * (i % 30)}], %r2\n" for i in range(100)
    )
    written = "".join(f"stdw [%r10-{8 + 8 * i}], 0\n" for i in range(30))
    assert verdict(f"mov %r6, %r1\n{written}{branches}ldxdw %r0, [%r10-8]\nexit").states < 2_000


def test_a_branch_in_each_round_of_a_long_loop() -> None:
    body = "jset %r7, 1, +1\nadd %r0, 1\nadd %r6, 1\njlt %r6, 1000, again\nexit"
    v = verdict(f"mov %r0, 0\nmov %r6, 0\nldxdw %r7, [%r1+24]\nagain: {body}")
    assert v.states < 30_000
    assert v.cost == {4: 3 + 4 * 1000 + 1}


def test_lookups_and_null_checks_one_after_another() -> None:
    one = "key array\ncall map_lookup_elem\njeq %r0, 0, +2\nmov %r1, 1\nlock add [%r0+0], %r1\n"
    v = verdict(one * 60 + "end")
    assert v.simt
    assert v.states < 2_000


def test_paths_that_cannot_be_told_apart_any_cheaper_end_in_a_rejection() -> None:
    """Every sum of powers of two is another offset, in a loop, where nothing is blended."""
    body = "".join(f"ldxw %r2, [%r1+32]\njeq %r2, 0, +1\nadd %r7, {1 << i}\n" for i in range(20))
    use = "mov %r4, %r7\nand %r4, 63\nmov %r3, %r10\nadd %r3, -64\nadd %r3, %r4\nstb [%r3+0], 1\n"
    text = f"mov %r0, 0\nmov %r7, 0\nagain: {body}{use}jgt %r7, %r0, +0\nadd %r0, 1\njlt %r0, 10, again\nexit"
    assert refused(text) == f"loop not shown to end: more than {MAX_STEPS} instructions and states were looked at"


def test_a_straight_program_cannot_be_too_long_for_an_event() -> None:
    calls = "key lat\nmov %r3, 1\ncall hist_add\n" * 580
    assert verdict(calls + "end").cost == {4: 580 * 37 + 2}


def test_a_proof_that_is_too_dear_to_stand_behind_a_longer_path() -> None:
    dear = "mov %r2, 0\nfirst: add %r2, 1\njlt %r2, 10000, first\n"
    again = "short: mov %r2, 0\nsecond: add %r2, 1\njlt %r2, 10000, second\nend"
    text = f"ldxw %r3, [%r1+32]\njeq %r3, 0, short\n{dear}{again}"
    assert refused(text) == f"loop not shown to end: one event can cost more than {MAX_COST} instructions"


def test_thousands_of_updates_that_may_conflict() -> None:
    """Two kinds of atomics on other words in each of many rounds: told apart without comparing each with each."""
    text = """
            mov %r6, 0
            mov %r5, 1
    again:  lddw %r1, value:bss
            mov %r2, %r6
            and %r2, 24
            add %r1, %r2
            lock add [%r1+0], %r5
            lock or [%r1+32], %r5
            add %r6, 1
            jlt %r6, 2000, again
            mov %r0, 0
            exit
    """
    assert verdict(text).simt
