"""Constants decide branches as the interpreter does, and what can run is never taken for dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.interpreter import run_raw
from megascope.capture.programs.objects.live_code import live

JUMPS = ("jeq", "jne", "jgt", "jge", "jlt", "jle", "jsgt", "jsge", "jslt", "jsle", "jset")
COMPUTED = ("add", "sub", "mul", "and", "or", "xor", "lsh", "rsh", "mov")
UNKNOWN = ("div", "mod", "arsh")
immediate = st.one_of(st.integers(-4, 4), st.integers(-(1 << 31), (1 << 31) - 1))
wide = st.one_of(st.integers(0, 8), st.integers(0, (1 << 64) - 1))


@given(st.data())
def test_a_branch_on_constants_goes_where_the_interpreter_goes(data: st.DataObject) -> None:
    draw = data.draw
    op, bits = draw(st.sampled_from(COMPUTED + UNKNOWN)), draw(st.sampled_from(("", "32")))
    jump, width = draw(st.sampled_from(JUMPS)), draw(st.sampled_from(("", "32")))
    operand = "%r2" if draw(st.booleans()) else str(draw(immediate))
    text = f"""
        lddw %r1, {draw(wide):#x}
        mov %r2, {draw(immediate)}
        {op}{bits} %r1, {draw(immediate) if draw(st.booleans()) else "%r2"}
        {jump}{width} %r1, {operand}, taken
        mov %r0, 1
        exit
    taken:
        mov %r0, 2
        exit
    """
    insns = assemble(text)
    arms = {1: 5, 2: 7}
    went = run_raw(insns, bytearray(8))
    found = live(insns, [0])
    assert arms[went] in found
    assert (arms[3 - went] in found) == (op in UNKNOWN)


def test_where_paths_meet_only_what_is_alike_is_known() -> None:
    insns = assemble(
        """
        mov %r6, 7
        mov %r7, 1
        jeq %r1, 0, other
        mov %r7, 2
    other:
        jeq %r6, 7, out
        mov %r0, 1
    out:
        jeq %r7, 1, end
        mov %r0, 2
    end:
        exit
        """
    )
    assert set(range(len(insns))) - live(insns, [0]) == {5}


def test_calls_forget_and_are_followed() -> None:
    insns = assemble(
        """
        mov %r1, 0
        mov %r6, 0
        call 5
        jne %r1, 0, a
        mov %r2, 1
    a:
        jne %r6, 0, b
        call local f
        exit
    b:
        exit
    f:
        jeq %r1, 0, c
        mov %r0, 1
    c:
        exit
        """
    )
    assert set(range(len(insns))) - live(insns, [0]) == {8}


def test_a_loop_ends() -> None:
    insns = assemble("mov %r1, 0\nl: add %r1, 1\njlt %r1, 100000, l\nexit".replace("l: ", "l:\n"))
    assert live(insns, [0]) == {0, 1, 2, 3}


def test_what_leads_out_of_the_program_is_left_to_the_verifier() -> None:
    assert live(assemble("mov %r1, 1"), [0]) == {0}
    assert live(assemble("ja 5\nexit"), [0]) == {0}
