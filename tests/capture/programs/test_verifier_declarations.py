"""What is refused of entries, functions and maps; what a rejection says, and the verdict on an accepted program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from verifier_table import MAPS, NAMES, program

from megascope.capture.programs.assembler import assemble, assemble_labelled
from megascope.capture.programs.isa import Insn
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Entry, Function, Program, SourceLine
from megascope.capture.programs.verdict import Access, Region, Rejected
from megascope.capture.programs.verifier import verify
from megascope.store.errors import Exit

NOTHING = assemble("mov %r0, 0\nexit")
PLAIN = Program("p", NOTHING, (Entry("main", (4,), 0),))


def refused(p: Program) -> str:
    with pytest.raises(Rejected) as e:
        verify(p)
    return e.value.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"insns": ()}, "it has no instructions"),
        ({"insns": NOTHING * 2049}, "it has 4098 slots, more than 4096"),
        ({"entries": ()}, "it has no entry: nothing would run it"),
        ({"entries": (Entry("a", (4,), 2),)}, "entry a begins at slot 2, which is not there"),
        ({"entries": (Entry("a", (4,), -1),)}, "entry a begins at slot -1, which is not there"),
        ({"entries": (Entry("a", (), 0),)}, "entry a is for no hook"),
        ({"entries": (Entry("a", (14,), 0),)}, "entry a is for hook 14, which there is not"),
        ({"entries": (Entry("a", (0,), 0),)}, "entry a is for pick, where only advise programs run"),
        (
            {"entries": (Entry("a", (4,), 0),), "kind": "advise"},
            "entry a is for hook 4, where only observe programs run",
        ),
        ({"entries": (Entry("a", (4,), 0), Entry("b", (3, 4), 0))}, "hook 4 has two entries, a and b"),
        ({"entries": (Entry("a", (4, 4), 0),)}, "hook 4 has two entries, a and a"),
        ({"kind": "drop"}, "it is of kind 'drop', neither observe nor advise"),
        ({"functions": (Function(9, "f"),)}, "function f begins at slot 9, which is not there"),
        ({"functions": (Function(0, "f"), Function(0, "g"))}, "functions f and g begin at the same slot"),
        ({"functions": (Function(1, "f"),)}, "function main does not end in exit or ja"),
        ({"sample": 0}, "sample is 0 and emit_limit None"),
        ({"emit_limit": -1}, "sample is 1 and emit_limit -1"),
    ],
)
def test_entries_and_functions(change: dict[str, Any], reason: str) -> None:
    assert refused(replace(PLAIN, **change)) == reason


HASH = Map("m", MapKind.HASH, 4, 8, 16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": 99}, "map m is of kind 99, which there is not"),
        ({"key_size": 0}, "map m has keys of 0 bytes; 1 to 64 are possible"),
        ({"key_size": 65}, "map m has keys of 65 bytes; 1 to 64 are possible"),
        ({"value_size": 0}, "map m has values of 0 bytes; 1 to 4096 are possible"),
        ({"value_size": 4097}, "map m has values of 4097 bytes; 1 to 4096 are possible"),
        ({"max_entries": 0}, "map m has 0 entries; 1 to 1048576 are possible"),
        ({"max_entries": (1 << 20) + 1}, "map m has 1048577 entries; 1 to 1048576 are possible"),
        ({"kind": MapKind.ARRAY, "key_size": 8}, "map m has keys of 8 bytes; an index has 4"),
        ({"kind": MapKind.HIST, "aggregate": True}, "map m has values of 8 bytes; those of its kind have 7840"),
        ({"kind": MapKind.STATS, "value_size": 32}, "map m counts for an epoch: it must be an aggregation"),
        ({"kind": MapKind.FEEDBACK}, "map m has values of 8 bytes; those of its kind have 16"),
        (
            {"kind": MapKind.FEEDBACK, "value_size": 16, "aggregate": True},
            "map m is written by the host: it can be no aggregation",
        ),
        (
            {"initial": bytes(8)},
            "map m has initial contents, which only the one value of an array can have, of its size",
        ),
        (
            {"kind": MapKind.ARRAY, "max_entries": 1, "initial": bytes(9)},
            "map m has initial contents, which only the one value of an array can have, of its size",
        ),
        ({"read_only": True, "aggregate": True}, "map m is an aggregation that nobody may write"),
    ],
)
def test_maps(change: dict[str, Any], reason: str) -> None:
    assert refused(replace(PLAIN, maps=(replace(HASH, **change),))) == reason


def test_two_maps_of_one_name() -> None:
    assert refused(replace(PLAIN, maps=(HASH, HASH))) == "two maps have the name m"


def test_a_rejection_names_instruction_register_reason_and_source() -> None:
    lines = (SourceLine(0, "lat.bpf.c", 3, 1, "int at(...) {"), SourceLine(1, "lat.bpf.c", 7, 5, "  return *p;"))
    p = replace(program("mov %r2, 4\nldxdw %r0, [%r2+0]\nexit"), lines=lines)
    with pytest.raises(Rejected) as e:
        verify(p)
    assert (e.value.pc, e.value.register, e.value.code) == (1, 2, Exit.REFUSED)
    text = "program case: instruction 1, r2 (lat.bpf.c:7: return *p;): a number (4) is used as an address"
    assert str(e.value) == f"{text}; change the program"


def advise(text: str) -> Program:
    return replace(program(text), kind="advise", entries=(Entry("choose", (0,), 0),))


def test_advise_programs_return_0_to_7() -> None:
    assert verify(advise("ldxw %r0, [%r1+32]\nand %r0, 7\nexit")).cost == {0: 3}
    assert (
        refused(advise("ldxw %r0, [%r1+32]\nand %r0, 15\nexit")) == "an advise program returns 0..15; 0..7 are allowed"
    )
    assert refused(advise("mov %r0, -1\nexit")) == "an advise program returns -1; 0..7 are allowed"
    # a proof made with 3 must not stand for 9
    two = "ldxw %r2, [%r1+32]\nmov %r0, 3\njeq %r2, 0, +1\nmov %r0, 9\nexit"
    assert refused(advise(two)) == "an advise program returns 9; 0..7 are allowed"


def test_advise_programs_emit_nothing() -> None:
    assert refused(advise("call emit\nmov %r0, 0\nexit")) == "emit needs an event; only observe programs see one"


def test_stack_over_the_deepest_chain_names_who_needs_it() -> None:
    text = "stdw [%r10-200], 1\ncall local f\nend\nf: stdw [%r10-64], 1\nmov %r0, 0\nexit"
    p = replace(program(text), functions=(Function(0, "main"), Function(4, "fold")))
    assert refused(p) == "main (200) and what it calls from here need 264 bytes of stack, more than 256"


def test_the_verdict_of_a_program() -> None:
    text = """
            mov %r6, %r1
            ldxh %r2, [%r6+52]
            stxw [%r10-4], %r2
            ldxdw %r3, [%r6+0]
            ldxw %r4, [%r6+16]
            sub %r3, %r4
            mov %r2, %r10
            add %r2, -4
            lddw %r1, map:lat
            call hist_add
            jgt %r0, 5, out
            mov %r1, %r6
            call emit
    out:    mov %r0, 0
            exit
            ldxdw %r0, [%r9+0]
            exit
    """
    verdict = verify(program(text))
    assert verdict.access == {
        1: Access(Region.CONTEXT, -1, 52, 2),
        2: Access(Region.STACK),
        3: Access(Region.CONTEXT, -1, 0, 8),
        4: Access(Region.CONTEXT, -1, 16, 4),
    }
    assert verdict.call_maps == {10: NAMES["lat"]}
    assert verdict.reachable == frozenset(range(16)) - {9}
    assert verdict.columns == {"t", "task", "task_class"}
    assert (verdict.stack, verdict.frames, verdict.emits, verdict.simt) == (8, {0: 8}, True, True)
    assert verdict.cost == verdict.batch_cost == {4: 13 + 32 + 2}


def test_time_is_a_column() -> None:
    assert verify(program("call ktime_get_ns\nexit")).columns == {"t"}


def test_hooks_have_the_cost_of_their_entry() -> None:
    code = assemble_labelled("mov %r0, 0\nexit\nb: mov %r0, 0\nmov %r0, 0\nexit")
    entries = (Entry("a", (3, 5), 0), Entry("b", (4,), code.labels["b"]))
    assert verify(Program("p", code.insns, entries, MAPS)).cost == {3: 2, 5: 2, 4: 3}


def test_one_serial_entry_makes_the_program_serial() -> None:
    code = assemble_labelled("mov %r0, 0\nexit\nb: lddw %r1, value:bss\nldxdw %r0, [%r1+0]\nexit", NAMES)
    entries = (Entry("a", (3,), 0), Entry("b", (4,), code.labels["b"]))
    verdict = verify(Program("p", code.insns, entries, MAPS))
    assert (verdict.serial_pc, verdict.batch_cost) == (4, {3: 64, 4: 96})


def test_the_same_map_at_two_hooks_must_commute() -> None:
    texts = ("key counts\nmov %r3, 1\ncall map_add\nend", "key counts\nmov %r3, 1\ncall map_max\nend")
    first, second = (program(t).insns for t in texts)
    entries = (Entry("a", (3,), 0), Entry("b", (4,), len(first)))
    verdict = verify(Program("p", first + second, entries, MAPS))
    assert verdict.serial_because == "map_max does not commute with map_add at instruction 6, both on map counts"


def test_every_slot_that_may_run_is_an_instruction() -> None:
    two_slots = (Insn(0x18, 0, 0, 0, 7), Insn(0, 0, 0, 0, 0), Insn(0x95))
    assert verify(replace(PLAIN, insns=two_slots)).reachable == {0, 2}
