from __future__ import annotations

import pytest
from conformance import EXCLUDED, cases
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.helpers import HELPER_BY_NAME
from megascope.capture.programs.interpreter import Interpreter, NoMaps, run_raw
from megascope.capture.programs.isa import decode
from megascope.capture.programs.memory import Allocation, Fault, Memory
from megascope.capture.programs.program import MAX_FRAMES
from megascope.capture.programs.verdict import Region

FAULTS = [
    ("mov %r0, 0", 1, "there is no instruction here"),
    ("ja -2", -1, "there is no instruction here"),
    ("ja +1\nlddw %r0, 1\nexit", 2, "there is no instruction here"),
    (".slot 0x8d", 0, "there is no instruction here"),
    (".slot 0x18", 0, "without its second slot"),
    ("a: ja a", 0, "more than 100 instructions"),
    ("mov %r10, 1\nexit", 0, "r10 is read-only"),
    ("lddw %r1, map:0\nexit", 0, "there is no map 0"),
    ("call 77\nexit", 0, "there is no helper 77"),
    ("call emit\nexit", 0, "needs a program"),
    ("f: call local f\nexit", 0, "more than 8 calls deep"),
    ("mov %r1, 0\nldxb %r0, [%r1]\nexit", 1, "nobody's"),
    ("ldxb %r0, [%r1+16]\nexit", 0, "nobody's"),
    ("ldxdw %r0, [%r1+9]\nexit", 0, "nobody's"),
    ("ldxb %r0, [%r1-1]\nexit", 0, "nobody's"),
    ("stb [%r10], 0\nexit", 0, "nobody's"),
    ("stb [%r10-257], 0\nexit", 0, "nobody's"),
    ("lock add [%r10-4], %r1\nexit", 0, "nobody's"),
    ("lddw %r3, 0x100000000\nsub %r10, %r3\nexit", 2, "r10 is read-only"),
    ("call local f\nldxb %r0, [%r0-8]\nexit\nf: stb [%r10-8], 1\nmov %r0, %r10\nexit", 1, "nobody's"),
]


@pytest.mark.parametrize(("text", "pc", "reason"), FAULTS)
def test_what_stops_a_run(text: str, pc: int, reason: str) -> None:
    with pytest.raises(Fault, match=reason) as caught:
        run_raw(assemble(text), bytearray(16), budget=100)
    assert caught.value.pc == pc


ONLY_INSTRUMENTED = [
    ("exit", "r0 has no value"),
    ("mov %r0, %r3\nexit", "r3 has no value"),
    ("add %r0, 1\nexit", "r0 has no value"),
    ("jeq %r7, 0, exit\nexit", "r7 has no value"),
    ("stxdw [%r10-8], %r4\nmov %r0, 0\nexit", "r4 has no value"),
    ("mov %r0, 0\nldxb %r1, [%r10-8]\nexit", "never written"),
    ("mov %r0, 0\nstb [%r10-8], 1\nldxh %r1, [%r10-8]\nexit", "never written"),
    ("mov %r0, 0\nlock add [%r10-8], %r0\nexit", "never written"),
    ("stdw [%r10-9], 0\nmov %r0, 0\nexit", "not aligned"),
    ("mov %r0, 0\nmov %r6, 0\ncall local f\nexit\nf: mov %r0, %r6\nexit", "r6 has no value"),
    ("mov %r1, 0\ncall local f\nmov %r0, %r1\nexit\nf: exit", "r1 has no value"),
    ("mov %r1, 0\ncall ktime_get_ns\nmov %r0, %r1\nexit", "r1 has no value"),
]


@pytest.mark.parametrize(("text", "reason"), ONLY_INSTRUMENTED)
def test_what_only_an_instrumented_run_stops(text: str, reason: str) -> None:
    insns = assemble(text)
    assert run_raw(insns, bytearray()) >= 0
    with pytest.raises(Fault, match=reason):
        run_raw(insns, bytearray(), instrumented=True)


def test_frames_are_as_large_as_they_are_said_to_be() -> None:
    insns = assemble("call local f\nmov %r0, 0\nexit\nf: stb [%r10-12], 1\nexit")
    for size, fits in ((12, True), (11, False)):
        code = Interpreter(insns, {0: 0, 3: size}, instrumented=True)
        if fits:
            assert code.run(0, (), Memory(), NoMaps(), 100).r0 == 0
        else:
            with pytest.raises(Fault, match="nobody's"):
                code.run(0, (), Memory(), NoMaps(), 100)


def test_a_callee_reaches_its_callers_frame_and_keeps_its_registers() -> None:
    text = """
        stdw [%r10-8], 40
        mov %r1, %r10
        mov %r6, 1
        call local f
        ldxdw %r0, [%r10-8]
        add %r0, %r6
        exit
        f: ldxdw %r6, [%r1-8]
        add %r6, 1
        stxdw [%r1-8], %r6
        stdw [%r10-8], 0
        exit
    """
    assert run_raw(assemble(text), bytearray(), instrumented=True) == 42


def test_calls_are_as_deep_as_the_frames_allow() -> None:
    text = "mov %r1, {}\ncall local f\nmov %r0, 1\nexit\nf: jeq %r1, 0, out\nsub %r1, 1\ncall local f\nout: exit"
    assert run_raw(assemble(text.format(MAX_FRAMES - 2)), bytearray()) == 1
    with pytest.raises(Fault, match="calls deep"):
        run_raw(assemble(text.format(MAX_FRAMES - 1)), bytearray())


def test_what_is_spent() -> None:
    insns = assemble("lddw %r1, 5\ncall ktime_get_ns\nexit")
    spent = Interpreter(insns).run(0, (), Memory(), NoMaps(), 100).spent
    assert spent == 2 + HELPER_BY_NAME["ktime_get_ns"].cost
    assert run_raw(insns, bytearray(), budget=spent) == 0
    with pytest.raises(Fault, match=f"more than {spent - 1} instructions"):
        run_raw(insns, bytearray(), budget=spent - 1)


def test_memory_has_edges() -> None:
    memory = Memory()
    first, second = bytearray(8), bytearray(8)
    a, b = memory.add(Allocation(first)), memory.add(Allocation(second, Region.VALUE, writable=False, map=3))
    assert memory.add(Allocation(first)) == a != b
    memory.store(a, b"12345678")
    assert bytes(first) == b"12345678"
    assert memory.load(a + 6, 2) == b"78"
    with pytest.raises(Fault):
        memory.load(a + 7, 2)
    with pytest.raises(Fault):
        memory.load(0, 1)
    with pytest.raises(Fault, match="read-only"):
        memory.store(b, b"1")
    memory.free(a)
    with pytest.raises(Fault):
        memory.load(a, 1)
    assert memory.add(Allocation(first)) != a, "an address is never used again"


known = [encoded for c in cases() if c.name not in EXCLUDED for encoded in c.insns]
slots = st.one_of(
    st.binary(min_size=8, max_size=8).map(lambda b: decode(b)[0]), st.sampled_from(known or [decode(bytes(8))[0]])
)


@given(st.lists(slots, max_size=40), st.binary(max_size=16), st.booleans())
def test_any_bytes_end_in_a_number_or_a_fault(insns: list, memory: bytes, instrumented: bool) -> None:  # type: ignore[type-arg]
    try:
        assert 0 <= run_raw(insns, bytearray(memory), budget=200, instrumented=instrumented) < 1 << 64
    except Fault as e:
        assert e.reason
