"""What cannot be lowered is one clear error, and nothing takes the process down."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made import a_map, program, rows

from megascope.capture.programs.helpers import HELPER_BY_ID
from megascope.capture.programs.isa import Insn, Kind
from megascope.capture.programs.maps import MapKind
from megascope.capture.programs.mnemonics import ENCODINGS
from megascope.capture.programs.native import Native
from megascope.capture.programs.native_compile import Compiled
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.verdict import Access, Region, Verdict
from megascope.capture.programs.verifier import verify
from megascope.store.errors import MegascopeError, Refused
from megascope.store.tables import EVENT_ROW

GOOD = """
    ldxw %r3, [%r1+40]
    stxw [%r10-4], %r3
    mov %r2, %r10
    add %r2, -4
    lddw %r1, map:m
    call map_add
    lddw %r1, value:g
    ldxdw %r0, [%r1+8]
    exit
"""
MAPS = (a_map(MapKind.HASH), a_map(MapKind.ARRAY, "g", value=16, entries=1, initial=bytes(16)))


def good() -> Verdict:
    return verify(program(GOOD, *MAPS))


def with_slot(pc: int, insn: Insn) -> Verdict:
    v = good()
    insns = (*v.program.insns[:pc], insn, *v.program.insns[pc + 1 :])
    return replace(v, program=replace(v.program, insns=insns))


def without_access(pc: int) -> Verdict:
    v = good()
    return replace(v, access={k: a for k, a in v.access.items() if k != pc})


def with_access(pc: int, access: Access) -> Verdict:
    v = good()
    return replace(v, access=v.access | {pc: access})


BAD = [
    (with_slot(0, Insn(0xFF)), "instruction 0 cannot be lowered: no instruction is encoded as"),
    (with_slot(0, Insn(0x05, 0, 0, 100)), "control leaves"),
    (with_slot(10, Insn(0xB7, 0, 0, 0, 0)), "control leaves"),
    (with_slot(0, Insn(0xB7, 10, 0, 0, 1)), "r10 is written"),
    (with_slot(1, Insn(0x63, 10, 3, -12)), "bytes -12 to -8 are outside of"),
    (with_slot(1, Insn(0x63, 10, 3, 4)), "outside"),
    (with_slot(4, Insn(0x18, 1, 1, 0, 9)), "there is no map 9"),
    (with_slot(5, Insn(0xB7)), "second slot"),
    (with_slot(6, Insn(0x85, 0, 0, 0, 99)), "there is no helper 99"),
    (with_slot(6, Insn(0x85, 0, 0, 0, 1004)), "gives hist_add no map that it works on"),
    (with_slot(7, Insn(0x18, 1, 2, 0, 0)), "map 0 is no global"),
    (with_slot(8, Insn(0, 0, 0, 0, 16)), "bytes 24 to 32 are outside of 0 to 16"),
    (without_access(0), "does not say what it touches"),
    (without_access(9), "does not say what it touches"),
    (with_access(0, Access(Region.CONTEXT, -1, 38, 4)), "not within one column"),
    (with_access(1, Access(Region.CONTEXT, -1, 40, 4)), "only read"),
    (with_access(1, Access(Region.VALUE, 0)), "does not point where the verdict says"),
    (replace(good(), call_maps={}), "gives map_add no map that it works on"),
    (replace(good(), frames={}), "no frame"),
    (replace(good(), program=replace(good().program, entries=(Entry("p", (0,), 0),))), "attached to no hook"),
]


@pytest.mark.parametrize(("verdict", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_what_cannot_be_lowered_is_refused_with_the_reason(verdict: Verdict, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        Native(replace(verdict, reachable=frozenset(range(200))), 1)
    assert reason in str(caught.value)


def test_code_that_no_path_reaches_is_left_out() -> None:
    """The verifier knows that 1 is not 0; what stands behind has no access in its verdict, and is no instruction."""
    v = verify(program("mov %r1, 1\njeq %r1, 0, never\nmov %r0, 0\nexit\nnever: mov %r0, 1\nexit"))
    dead = (*v.program.insns[:4], Insn(0xFF), Insn(0xFF))
    verdict = replace(v, program=replace(v.program, insns=dead), reachable=frozenset(range(4)))
    native = Native(verdict, 1)
    native.run(rows([{}]), np.zeros(1, np.uint32), 0)
    assert native.counters.sum() == 1


def test_assembly_that_llvm_refuses_is_an_error() -> None:
    for bad in ("nonsense", "define i64 @f() {\n ret i32 0\n}", "define void @f() {\nb:\n br label %c\n}"):
        with pytest.raises(MegascopeError, match="LLVM refuses"):
            Compiled("program p", bad, thorough=False)


def test_batches_of_the_wrong_form_are_refused() -> None:
    native = Native(good(), 1)
    by = np.zeros(1, np.uint32)
    for bad in (np.zeros((1, 7), np.uint64), np.zeros((1, 8), np.int64), np.zeros((2, 8), np.uint64)[:, ::-1]):
        with pytest.raises(ValueError, match="rows are"):
            native.run(bad, by, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="by is"):
        native.run(rows([{}, {}]), by, 0)
    with pytest.raises(ValueError, match="row 1 is of worker 5, of 1"):
        native.run(rows([{}, {"worker": 5}]), np.zeros(2, np.uint32), 0)


def test_columns_of_the_wrong_form_are_refused() -> None:
    native = Native(good(), 1)
    by = np.zeros(2, np.uint32)
    fit = {"dep": np.zeros(2, np.uint32), "hook": np.full(2, 4, np.uint8), "worker": np.zeros(2, np.uint16)}
    native.run_columns(fit, by, 0)
    native.run_columns(fit | {"hook": np.broadcast_to(np.uint8(4), 2), "dep": np.zeros(4, np.int64)[::2]}, by, 0)
    assert native.counters.sum() == 4
    for bad, reason in (
        ({"dep": None}, "reads column dep, which is not there"),
        ({"dep": np.zeros(2, np.uint16)}, "column dep is uint16"),
        ({"dep": np.zeros(2)}, "column dep is float64"),
        ({"dep": np.zeros((2, 1), np.uint32)}, "column dep is"),
        ({"dep": np.zeros(3, np.uint32)}, "different lengths"),
    ):
        columns = {k: v for k, v in (fit | bad).items() if v is not None}
        with pytest.raises(MegascopeError, match=reason):
            native.run_columns(columns, by, 0)  # type: ignore[arg-type]


NOTHING = np.zeros((0, 8), np.uint64)
FUZZ = """
import random, sys
sys.path.insert(0, sys.argv[1])
from test_lowering import lower_noise
random.seed(int(sys.argv[2]))
print(sum(lower_noise(random.randrange(1 << 32)) for _ in range(int(sys.argv[3]))))
"""


def noise(rng: np.random.Generator) -> tuple[Insn, ...]:
    """Instructions that exist, with operands of which most make no sense."""
    known, n = list(ENCODINGS.values()), int(rng.integers(1, 40))
    out: list[Insn] = []
    while len(out) < n:
        op, insn = known[rng.integers(0, len(known))]
        dst, src = int(rng.integers(0, 10)), int(rng.choice((0, 1, 2, 3, 6, 10)))
        imm, ahead = int(rng.integers(-(1 << 31), 1 << 31)), int(rng.integers(-len(out) - 1, n - len(out)))
        near = -int(rng.integers(0, 9)) * 8
        match op.kind:
            case Kind.ALU if op.name != "neg":
                out.append(insn._replace(dst=dst, **({"src": src} if op.register else {"imm": imm})))
            case Kind.JUMP:
                out.append(insn._replace(dst=dst, off=ahead, **({"src": src} if op.register else {"imm": imm})))
            case Kind.LOAD | Kind.LOADSX | Kind.ATOMIC:
                out.append(insn._replace(dst=dst, src=src if op.kind is Kind.ATOMIC else 10, off=near))
            case Kind.STORE:
                out.append(insn._replace(dst=10, off=near, **({"src": src} if op.register else {"imm": imm})))
            case Kind.WIDE:
                out += [insn._replace(dst=dst, src=int(rng.integers(0, 3)), imm=imm % 3), Insn(0, imm=imm % 20)]
            case Kind.CALL:
                out.append(insn._replace(imm=ahead if op.register else int(rng.choice(list(HELPER_BY_ID)))))
            case _:
                out.append(insn._replace(dst=dst if op.kind is not Kind.EXIT and op.kind is not Kind.GOTO else 0))
    return (*out, Insn(0xB7), Insn(0x95))


def lower_noise(seed: int) -> bool:
    """Lower instructions that nobody verified; whether LLVM got to see them. They are not run."""
    rng = np.random.default_rng(seed)
    insns = noise(rng)
    regions = (Access(Region.STACK), Access(Region.STACK), Access(Region.VALUE, 0), Access(Region.CONTEXT, -1, 0, 8))
    access = {pc: regions[rng.integers(0, len(regions))] for pc in range(99)}
    verdict = replace(
        good(),
        program=Program("noise", insns, (Entry("p", (4,), 0),), MAPS),
        access=access,
        reachable=frozenset(range(99)),
        frames=dict.fromkeys(range(99), 64),
        call_maps={pc: int(rng.integers(0, 2)) for pc in range(len(insns))},
    )
    try:
        Native(verdict, 1, settled=0 if seed % 2 else 1 << 20).run(NOTHING, np.zeros(0, np.uint32), 0)
    except MegascopeError:
        return False
    return True


def fuzz(seed: int, times: int) -> int:
    command = [sys.executable, "-c", FUZZ, str(Path(__file__).parent), str(seed), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_noise_never_ends_the_process() -> None:
    assert fuzz(1, 100) > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_much_noise_never_ends_the_process() -> None:
    assert fuzz(2, 5_000) > 500


def test_every_column_is_read_as_it_stands() -> None:
    """A program that counts each column under its own key, in rows and in columns."""
    text = "mov %r6, %r1\n"
    for i, column in enumerate(EVENT_ROW):
        letter = {8: "b", 16: "h", 32: "w", 64: "dw"}[column.bits]
        text += f"""
            ldx{letter} %r3, [%r6+{EVENT_ROW.offsets[column.name]}]
            stw [%r10-4], {i}
            mov %r2, %r10
            add %r2, -4
            lddw %r1, map:m
            call map_add
        """
    native = Native(verify(program(text + "mov %r0, 0\nexit", a_map(MapKind.ARRAY, entries=len(EVENT_ROW.columns)))), 8)
    event = {c.name: (1 << c.bits) - 1 - i for i, c in enumerate(EVENT_ROW)} | {"hook": 4, "worker": 7}
    batch = rows([event])
    native.run(batch, np.zeros(1, np.uint32), 0)
    whole = batch.reshape(-1).view(EVENT_ROW.dtype)
    native.run_columns({c.name: whole[c.name] for c in EVENT_ROW}, np.zeros(1, np.uint32), 0)
    got = native.entries(0, 7).values.view(np.uint64)[:, 0].tolist()
    assert got == [2 * int(whole[c.name][0]) % (1 << 64) for c in EVENT_ROW]
