from __future__ import annotations

import os
from pathlib import Path

import pytest
from conformance import EXCLUDED, MISSING, cases
from hand_made import a_map, program
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.disassembler import disassemble
from megascope.capture.programs.helpers import HELPERS
from megascope.capture.programs.isa import Insn, Kind, decode, operation
from megascope.capture.programs.maps import MapKind
from megascope.capture.programs.mnemonics import ENCODINGS, mnemonic
from megascope.capture.programs.program import Entry, Function, Program, SourceLine

GOLDEN = Path(__file__).parent / "golden" / "disassembly.txt"
MAPS = (a_map(MapKind.HASH, "lat"), a_map(MapKind.ARRAY, ".rodata"), a_map(MapKind.HIST, "twice"))
MAPS = (*MAPS, a_map(MapKind.HIST, "twice"), a_map(MapKind.HASH, "no name; exit"))

registers = st.integers(0, 10)
imms = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([h.id for h in HELPERS]), st.integers(-9, 9))
offs = st.one_of(st.integers(-(1 << 15), (1 << 15) - 1), st.integers(-9, 9))
bytes8 = st.binary(min_size=8, max_size=8)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[Insn, ...]:
    """One instruction of any operation, its free fields at random."""
    op, insn = draw(st.sampled_from(list(ENCODINGS.values())))
    dst, src, off, imm = draw(registers), draw(registers), draw(offs), draw(imms)
    match op.kind:
        case Kind.ALU:
            insn = insn._replace(dst=dst, src=src if op.register else 0)
            return (insn if op.register or op.name == "neg" else insn._replace(imm=imm),)
        case Kind.SWAP:
            return (insn._replace(dst=dst),)
        case Kind.WIDE:
            insn = insn._replace(dst=dst, src=draw(st.integers(0, 2)), imm=draw(st.one_of(imms, st.integers(0, 5))))
            return insn, Insn(0, imm=draw(imms))
        case Kind.LOAD | Kind.LOADSX | Kind.ATOMIC:
            return (insn._replace(dst=dst, src=src, off=off),)
        case Kind.STORE | Kind.JUMP:
            insn = insn._replace(dst=dst, off=off)
            return (insn._replace(src=src) if op.register else insn._replace(imm=imm),)
        case Kind.GOTO:
            return (insn._replace(imm=imm) if op.bits == 32 else insn._replace(off=off),)
        case Kind.CALL:
            return (insn._replace(imm=imm),)
        case Kind.EXIT:
            return (insn,)


code = st.lists(st.one_of(encoded(), encoded(), encoded(), bytes8.map(decode)), max_size=24).map(
    lambda parts: tuple(insn for part in parts for insn in part)
)


@given(encoded())
def test_each_encoding_is_what_its_name_says(slots: tuple[Insn, ...]) -> None:
    op = operation(slots[0])
    assert op is not None
    assert ENCODINGS[mnemonic(op), op.register][0] == op


def test_no_operation_is_without_a_name() -> None:
    meant = {operation(Insn(op, 0, src, off, imm)) for op in range(256) for src in (0, 1) for off in (0, 1, 8, 16, 32)
             for imm in range(256)} - {None}  # fmt: skip
    named = {op for op, _ in ENCODINGS.values()}
    assert meant == named


@given(code, st.booleans())
def test_text_assembles_to_the_same_slots(insns: tuple[Insn, ...], numbers: bool) -> None:
    assert assemble("\n".join(disassemble(insns, numbers=numbers))) == insns


confusing = st.sampled_from(["exit", "L3", "L3_", "r1", "f", "map", "call", "a.b", "hist_add"])
names = st.one_of(st.text(max_size=8), confusing)


@given(code, st.lists(st.tuples(st.integers(0, 30), names)), st.lists(st.tuples(st.integers(0, 30), st.text())))
def test_whatever_its_functions_and_source_are_called(
    insns: tuple[Insn, ...], functions: list[tuple[int, str]], lines: list[tuple[int, str]]
) -> None:
    p = Program(
        "p",
        insns,
        (Entry("p", (4,), 0),),
        MAPS,
        tuple(Function(pc, name) for pc, name in functions),
        lines=tuple(SourceLine(pc, text, 1, 1, text) for pc, text in lines),
    )
    text = disassemble(p, source=True, numbers=True)
    assert all(line.isprintable() for line in text)
    assert assemble("\n".join(text), {m.name: i for i, m in enumerate(MAPS)}) == insns


def test_a_function_may_be_called_like_a_label() -> None:
    insns = assemble("ja +1\nexit\nja -2\ncall local -4\nexit")
    functions = (Function(0, "L1"), Function(1, "L2_"), Function(3, "L2"), Function(4, "L2"))
    p = Program("p", insns, (Entry("p", (4,), 0),), (), functions)
    text = disassemble(p)
    assert text == [
        "L1:",
        "    ja L2__",
        "L2_:",
        "    exit",
        "L2__:",
        "    ja L2_",
        "L2:",
        "    call local L1",
        "    exit",
    ]
    assert assemble("\n".join(text)) == insns


@pytest.mark.skipif(not cases(), reason=MISSING)
def test_conformance_cases_survive() -> None:
    for c in cases():
        if c.name not in EXCLUDED:
            assert assemble("\n".join(disassemble(c.insns))) == c.insns, c.name


def sample() -> Program:
    """Every operation once, and everything that has a name."""
    lines = []
    for name, register in ENCODINGS:
        op, insn = ENCODINGS[name, register]
        second = "%r2" if op.register else "-7"
        match op.kind:
            case Kind.ALU if op.name != "neg":
                lines.append(f"{name} %r1, {second}")
            case Kind.ALU | Kind.SWAP:
                lines.append(f"{name} %r1")
            case Kind.WIDE:
                lines += [f"{name} %r1, 0x1122334455667788", f"{name} %r1, map:lat", f"{name} %r1, value:.rodata+8"]
                lines += [f"{name} %r1, map:3", f"{name} %r1, map:4", f"{name} %r1, value:.rodata"]
            case Kind.LOAD | Kind.LOADSX:
                lines.append(f"{name} %r1, [%r2{insn.off + 16:+}]")
            case Kind.STORE | Kind.ATOMIC:
                lines.append(f"{name} [%r10-8], {second}")
            case Kind.JUMP:
                lines.append(f"{name} %r1, {second}, out")
            case Kind.GOTO:
                lines += [f"{name} out", f"{name} -1000"]
            case Kind.CALL if op.register:
                lines.append(f"{name} twice")
            case Kind.CALL:
                lines += [f"{name} {h.name}" for h in HELPERS] + [f"{name} 77"]
            case Kind.EXIT:
                lines.append(name)
    text = (
        "main:\n"
        + "\n".join(lines)
        + "\nout: ja main\ntwice:\nadd %r1, %r1\nmov %r0, %r1\nexit\n.slot 0xff\n.slot 0x18\n"
    )
    p = program(text, *MAPS, hooks={"main": (4,), "twice": (5,)})
    source = (SourceLine(0, "p.bpf.c", 12, 3, "int main(void *row)"), SourceLine(9, "", 0, 0, "$x = exec_ns\x1b[2J"))
    return Program(p.name, p.insns, p.entries, p.maps, p.functions, lines=source)


def test_golden() -> None:
    text = "\n".join(disassemble(sample(), source=True, numbers=True)) + "\n"
    if os.environ.get("MEGASCOPE_RENEW_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), (
        "if this is meant, run again with MEGASCOPE_RENEW_GOLDEN=1 and read the difference"
    )
