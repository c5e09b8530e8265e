"""SIMT law: what is called SIMT gives the same maps and emissions however its lanes are interleaved, and what would not
is called serial. Cost of a batch: no execution in lockstep exceeds it.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import Batch, Schedule, at_random, last_first, lowest_slot_first, one_after_another
from program_grammar import MAPS, NAMES, random_program, rows
from verifier_table import program

from megascope.capture.programs.assembler import assemble_labelled
from megascope.capture.programs.execution import U64
from megascope.capture.programs.maps import MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Rejected, Verdict
from megascope.capture.programs.verifier import verify
from megascope.store.tables import EVENT_ROW

LANES = 32


def outcome(verdict: Verdict, seed: int, schedule: Schedule) -> tuple[Batch, object]:
    """Two batches, the second with a closed epoch to read."""
    batch = Batch(verdict)
    for i, m in batch.maps.items():
        if verdict.program.maps[i].kind is MapKind.FEEDBACK:
            m.feed(1, 7, 3)
    batch.run(rows(seed, LANES), schedule)
    first = batch.contents()
    batch.close()
    batch.run(rows(seed + 1, LANES), schedule)
    return batch, (first, batch.contents(), batch.emitted)


def obeys_the_law(seed: int) -> bool:
    """Whether the program was called SIMT: then it must be."""
    p, text = random_program(seed, commuting=True)
    try:
        verdict = verify(p)
    except Rejected:
        return False
    if not verdict.simt:
        return False
    _, expected = outcome(verdict, seed, one_after_another)
    for schedule in (last_first, at_random(seed), at_random(seed + 1)):
        assert outcome(verdict, seed, schedule)[1] == expected, f"seed {seed}\n{text}"
    batch, together = outcome(verdict, seed, lowest_slot_first)
    assert together == expected, f"seed {seed}\n{text}"
    assert batch.issues <= sum({e.pc: verdict.batch_cost[e.hooks[0]] for e in p.entries}.values()), text
    return True


def test_random_programs() -> None:
    assert sum(obeys_the_law(seed) for seed in range(40)) > 12


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_random_programs() -> None:
    assert sum(obeys_the_law(seed) for seed in range(1_000, 2_500)) > 500


def events(*fired: tuple[int, int, int]) -> U64:
    """Rows of (hook, task, t)."""
    out = np.zeros(len(fired), EVENT_ROW.dtype)
    for i, (hook, task, t) in enumerate(fired):
        out["hook"][i], out["task"][i], out["t"][i] = hook, task, t
    return out.view(np.uint64).reshape(-1, 8)


FIRST_SIGHT = """
        mov %r6, %r1
        ldxdw %r2, [%r6+16]
        stxdw [%r10-8], %r2
        mov %r2, %r10
        add %r2, -8
        lddw %r1, map:table
        call map_lookup_elem
        jne %r0, 0, out             # seen before
        ldxdw %r2, [%r6+0]
        stxdw [%r10-32], %r2
        stdw [%r10-24], 0
        stdw [%r10-16], 0
        mov %r2, %r10
        add %r2, -8
        mov %r3, %r10
        add %r3, -32
        mov %r4, 0
        lddw %r1, map:table
        call map_update_elem
out:    mov %r0, 0
        exit
"""


def first_seen(entries: tuple[bytes, bytes, int]) -> int:
    return int.from_bytes(entries[1][:8], "little")


def test_insert_on_first_sight_is_serial_and_right() -> None:
    p = Program("first", assemble_labelled(FIRST_SIGHT, NAMES).insns, (Entry("at", (4,), 0),), MAPS)
    verdict = verify(p)
    assert (verdict.serial_pc, verdict.serial_because) == (
        7,
        "map_lookup_elem of map table depends on what earlier events did",
    )
    seen = events((4, 9, 100), (4, 9, 200), (4, 9, 300))
    lockstep = Batch(verdict)
    lockstep.run(seen, lowest_slot_first)
    assert first_seen(lockstep.contents()[NAMES["table"]]) == 300, "every lane found nothing; the last one won"
    execution = Reference(verdict, 1, instrumented=True)
    execution.run(seen, np.zeros(3, np.uint32), 0)
    assert first_seen((b"", execution.entries(NAMES["table"], 0).values.tobytes(), 0)) == 100


PAIRING = """
complete:
        mov %r6, %r1
        ldxdw %r2, [%r6+16]
        stxdw [%r10-8], %r2
        mov %r2, %r10
        add %r2, -8
        lddw %r1, map:table
        call map_lookup_elem
        jeq %r0, 0, alone
        ldxdw %r7, [%r0+0]
        ldxdw %r3, [%r6+0]
        sub %r3, %r7
        stw [%r10-16], 0
        mov %r2, %r10
        add %r2, -16
        lddw %r1, map:lat
        call hist_add
        mov %r2, %r10
        add %r2, -8
        lddw %r1, map:table
        call map_delete_elem
alone:  mov %r0, 0
        exit
start:
        ldxdw %r2, [%r1+16]
        stxdw [%r10-8], %r2
        ldxdw %r2, [%r1+0]
        stxdw [%r10-32], %r2
        stdw [%r10-24], 0
        stdw [%r10-16], 0
        mov %r2, %r10
        add %r2, -8
        mov %r3, %r10
        add %r3, -32
        mov %r4, 0
        lddw %r1, map:table
        call map_update_elem
        mov %r0, 0
        exit
"""


def test_pairing_start_with_complete_is_serial_and_right() -> None:
    code = assemble_labelled(PAIRING, NAMES)
    entries = (Entry("complete", (4,), code.labels["complete"]), Entry("start", (3,), code.labels["start"]))
    verdict = verify(Program("pairing", code.insns, entries, MAPS))
    assert not verdict.simt
    assert verdict.serial_pc == 7
    seen = events((3, 9, 100), (4, 9, 350), (3, 9, 400), (4, 9, 420))
    lockstep = Batch(verdict)
    lockstep.run(seen, lowest_slot_first)
    assert lockstep.contents()[NAMES["lat"]][0] == b"", "the completions ran before any start"
    execution = Reference(verdict, 1, instrumented=True)
    execution.run(seen, np.zeros(4, np.uint32), 0)
    latencies = execution.entries(NAMES["lat"], 0).values.view(np.uint64)[0]
    assert [int(x) for x in latencies[:4]] == [2, 270, 20, 250]
    assert len(execution.entries(NAMES["table"], 0).keys) == 0


def cost_in_lockstep(text: str, requests: list[int]) -> tuple[Verdict, int]:
    """What a batch whose rows have these request numbers costs."""
    verdict = verify(program(text))
    out = np.zeros(len(requests), EVENT_ROW.dtype)
    out["hook"], out["request"] = 4, requests
    batch = Batch(verdict)
    batch.run(out.view(np.uint64).reshape(-1, 8), lowest_slot_first)
    return verdict, batch.issues


def test_both_sides_of_a_branch_cost_once_each() -> None:
    text = "ldxw %r0, [%r1+32]\njeq %r0, 0, other\nmov %r0, 1\nmov %r0, 2\nja out\nother: mov %r0, 3\nout: exit"
    verdict, issued = cost_in_lockstep(text, [0, 1] * 16)
    assert (verdict.cost, verdict.batch_cost, issued) == ({4: 6}, {4: 7}, 7)


def test_a_loop_costs_its_longest_lane() -> None:
    text = """
            ldxw %r2, [%r1+32]
            mov %r0, 0
    again:  jge %r0, %r2, out
            add %r0, 1
            jlt %r0, 16, again
    out:    exit
    """
    verdict, issued = cost_in_lockstep(text, list(range(32)))
    assert (verdict.cost, verdict.batch_cost, issued) == ({4: 2 + 16 * 3 + 1}, {4: 2 + 16 * 3 + 1}, 51)


def test_inner_loops_are_bounded_for_each_round_of_the_outer() -> None:
    """A lane whose inner loops are long in one round and a lane with long ones in the other pay for both."""
    text = """
            ldxw %r2, [%r1+32]
            mov %r0, 0
            mov %r3, 0
    outer:  mov %r4, 0
    inner:  add %r0, 1
            add %r4, 1
            mov %r5, %r2
            rsh %r5, %r3
            and %r5, 1
            jeq %r5, 0, next
            jlt %r4, 8, inner
    next:   add %r3, 1
            jlt %r3, 2, outer
            exit
    """
    verdict, issued = cost_in_lockstep(text, [1, 2])
    _, one = cost_in_lockstep(text, [1])
    assert issued > one
    assert issued == verdict.batch_cost[4] == verdict.cost[4] == 4 + 2 * (3 + 8 * 7)


def test_calls_and_loops_that_overlap_are_left_to_32_times() -> None:
    call = "mov %r1, 3\ncall local f\nexit\nf: mov %r0, %r1\nexit"
    assert verify(program(call)).batch_cost == {4: 32 * 5}
    overlapping = """
            mov %r2, 0
            ldxw %r3, [%r1+32]
    first:  add %r2, 1
    second: add %r2, 1
            jgt %r2, 20, out
            jset %r3, 1, first
            jgt %r2, 10, out
            ja second
    out:    mov %r0, 0
            exit
    """
    verdict, issued = cost_in_lockstep(overlapping, [0, 1] * 16)
    assert verdict.batch_cost == {4: 32 * verdict.cost[4]}
    assert issued <= verdict.batch_cost[4]
