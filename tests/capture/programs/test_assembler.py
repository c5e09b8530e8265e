from __future__ import annotations

import pytest

from megascope.capture.programs.assembler import AssemblyError, assemble, assemble_labelled
from megascope.capture.programs.helpers import HELPERS
from megascope.capture.programs.isa import Insn, Pseudo, encode, wide
from megascope.store.errors import Exit

# As LLVM 19 encodes the same instruction (llvm-mc -triple bpfel -mcpu=v4); `call local` and `.slot` are ours.
KNOWN = [
    ("mov %r1, -1", "b7010000ffffffff"),
    ("mov32 %r2, %r3", "bc32000000000000"),
    ("add %r1, 16", "0701000010000000"),
    ("sub32 %r9, %r0", "1c09000000000000"),
    ("neg %r4", "8704000000000000"),
    ("sdiv %r1, 3", "3701010003000000"),
    ("smod32 %r1, %r2", "9c21010000000000"),
    ("movsx832 %r1, %r2", "bc21080000000000"),
    ("movsx3264 %r1, %r2", "bf21200000000000"),
    ("arsh %r1, 63", "c70100003f000000"),
    ("be16 %r1", "dc01000010000000"),
    ("le64 %r1", "d401000040000000"),
    ("bswap32 %r1", "d701000020000000"),
    ("ldxw %r2, [%r1+32]", "6112200000000000"),
    ("ldxsb %r2, [%r1]", "9112000000000000"),
    ("ldxsh %r2, [%r1-2]", "8912feff00000000"),
    ("ldxsw %r2, [%r1]", "8112000000000000"),
    ("stxdw [%r10-8], %r1", "7b1af8ff00000000"),
    ("stb [%r1], 7", "7201000007000000"),
    ("lock add [%r1], %r2", "db21000000000000"),
    ("lock fetch xor32 [%r1+4], %r2", "c3210400a1000000"),
    ("lock xchg [%r1], %r2", "db210000e1000000"),
    ("lock cmpxchg32 [%r1], %r2", "c3210000f1000000"),
    ("jne %r1, %r2, +3", "5d21030000000000"),
    ("jsge32 %r1, -5, -2", "7601fefffbffffff"),
    ("ja +1", "0500010000000000"),
    ("ja32 -1", "06000000ffffffff"),
    ("call 5", "8500000005000000"),
    ("call local +2", "8510000002000000"),
    ("exit", "9500000000000000"),
    ("lddw %r1, 0x1122334455667788", "18010000887766550000000044332211"),
    (".slot 0x1122334455667788", "8877665544332211"),
]


@pytest.mark.parametrize(("text", "code"), KNOWN)
def test_encodings(text: str, code: str) -> None:
    assert encode(assemble(text)).hex() == code


WRONG = [
    ("exit\n  foo %r1, 2", 2, 3, "there is no instruction foo"),
    ("mov32 %r1, 2\nlddv %r1, 2", 2, 1, "did you mean lddw?"),
    ("mov %r1", 1, 1, "mov takes 2 operands, not 1"),
    ("mov %r1, ", 1, 1, "mov takes 2 operands, not 1"),
    ("exit 0", 1, 1, "exit takes 0 operands, not 1"),
    ("mov %r11, 2", 1, 5, "there is no register %r11"),
    ("mov 7, %r1", 1, 5, "'7' is no register"),
    ("mov %r1, 0x1ffffffff", 1, 10, "does not fit"),
    ("mov %r1, -2147483649", 1, 10, "does not fit"),
    ("lddw %r1, 0x10000000000000000", 1, 11, "does not fit"),
    ("mov %r1, 9" + "9" * 5000, 1, 10, "is no number"),
    ("ldxw %r1, %r2", 1, 11, "'%r2' is no memory operand; write"),
    ("ldxw %r1, [%r2+32768]", 1, 11, "does not fit"),
    ("stw [%r1], %r2", 1, 12, "'%r2' is no number"),
    ("lock add [%r1], 2", 1, 17, "'2' is no register"),
    ("lock nand [%r1], %r2", 1, 1, "there is no instruction lock nand; did you mean lock and?"),
    ("jeq %r1, 2, ovt\nout: exit", 1, 13, "there is no label ovt; did you mean out?"),
    ("ja exit", 1, 4, "there is no label exit"),
    ("a: ja b\na: b: exit", 2, 1, "label a is there already"),
    ("ja +40000", 1, 4, "does not fit"),
    ("ja32 +2147483648", 1, 6, "does not fit"),
    ("ja far\n" + "exit\n" * 32768 + "far: exit", 1, 4, "more than 16 bits hold; use ja32"),
    ("call hist_ad", 1, 6, "there is no helper hist_ad; did you mean hist_add?"),
    ("f: exit\ncall f", 2, 6, "there is no helper f; write call local f"),
    ("call %r2", 1, 6, "calls through a register are not part of the instruction set"),
    ("lddw %r1, map:lst", 1, 11, "there is no map lst; did you mean lat?"),
    ("lddw %r1, map:lat+8", 1, 11, "a map has no offset; write value:lat+8"),
    ("lddw %r1, map:", 1, 11, "is no map; write map:NAME"),
    ("exit\n5: exit", 2, 1, "this is slot 1"),
    ("%r1 = 2", 1, 1, "is no instruction"),
    (".slot 0x10000000000000000", 1, 7, "does not fit"),
]


@pytest.mark.parametrize(("text", "line", "column", "reason"), WRONG)
def test_errors_point_and_suggest(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(AssemblyError) as caught:
        assemble(text, {"lat": 0})
    assert (caught.value.line, caught.value.column) == (line, column)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"assembly: line {line}, column {column}: ")
    assert caught.value.code == Exit.REFUSED
    assert "\n" not in str(caught.value)


def test_every_helper_is_called_by_its_name() -> None:
    for h in HELPERS:
        assert assemble(f"call {h.name}") == assemble(f"call {h.id}")


def test_maps_by_name_and_by_number() -> None:
    maps = {"lat": 3, ".rodata": 1}
    assert assemble("lddw %r1, map:lat", maps) == assemble("lddw %r1, map:3")
    first, second = assemble("lddw %r2, value:.rodata+8", maps)
    assert (first.src, first.imm, second.imm) == (Pseudo.VALUE, 1, 8)
    assert assemble("lddw %r2, value:1-4")[1].imm == -4
    assert assemble("lddw %r2, value:.rodata", maps)[1].imm == 0


def test_wide_immediates_signed_and_unsigned() -> None:
    for text in ("-1", "0xffffffffffffffff", "18446744073709551615"):
        assert wide(*assemble(f"lddw %r1, {text}")) == (1 << 64) - 1
    assert wide(*assemble("lddw %r1, -9223372036854775808")) == 1 << 63


def test_labels_comments_and_slots() -> None:
    made = assemble_labelled(
        """
        # a comment
        first:  second: lddw %r1, 7   ; two slots
          2:    jeq %r1, 7, out       // checked
        call local third
        out:    exit
        third:
          5:    ja first
        """
    )
    assert made.labels == {"first": 0, "second": 0, "out": 4, "third": 5}
    assert made.insns[2] == Insn(0x15, 1, 0, 1, 7)
    assert made.insns[3] == Insn(0x85, 0, Pseudo.LOCAL, 0, 1)
    assert made.insns[5].off == -6


def test_exit_as_a_target_is_the_last_exit_or_a_label() -> None:
    assert assemble("exit\nja exit\nexit")[1].off == 0
    assert assemble("exit: mov %r0, 0\nja exit\nexit")[1].off == -2
