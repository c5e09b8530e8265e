"""Objects of one minor of the ABI under another: fields moved, resized, added, removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import CLANG, OBJECTS, SOURCES, compile_bpf, compile_text

from megascope.capture import hooks
from megascope.capture.programs import loader
from megascope.capture.programs.isa import Kind, operation
from megascope.capture.programs.objects.core_relocation import POISON
from megascope.capture.programs.program import Program
from megascope.capture.programs.verifier import verify
from megascope.store.errors import Refused
from megascope.store.tables import EVENT_ROW, Column, Table

with_clang = pytest.mark.skipif(CLANG is None, reason="no clang here")


def _table(*columns: Column) -> Table:
    return Table("event_row", EVENT_ROW.meaning, columns)


MOVED = _table(*reversed(EVENT_ROW.columns))
"""every field elsewhere (t last, at 56)"""
ADDED = _table(*EVENT_ROW.columns[:4], Column("cluster", "u64", "of a later minor"), *EVENT_ROW.columns[4:])
REMOVED = _table(
    *(c for c in EVENT_ROW if c.name not in ("comm", "peer")), Column("pad", "u32", ""), Column("q", "u16", "")
)
WIDENED = _table(
    *EVENT_ROW.columns[:8],
    *(Column(c.name, {"task_class": "u32", "worker": "u64"}.get(c.name, c.type), "") for c in EVENT_ROW.columns[8:]),
)


def context_loads(p: Program) -> list[tuple[int, int]]:
    """(offset, size) of loads from the context, in order: clang keeps it in r6 in programs that call helpers."""
    out = []
    for insn in p.insns:
        op = operation(insn)
        if op and op.kind == Kind.LOAD and insn.src == 6:
            out.append((insn.off, op.size))
    return out


def under(name: str, table: Table) -> Program:
    return loader.load(OBJECTS / f"{name}.bpf.o", contexts={"megascope_event": table})


@pytest.mark.parametrize("table", [MOVED, ADDED], ids=["moved", "added"])
def test_loads_follow_their_fields(table: Table) -> None:
    was = context_loads(under("class_latency", EVENT_ROW))
    names = {at: n for n, at in EVENT_ROW.offsets.items()}
    assert [names[at] for at, _ in was] == ["task_class", "worker", "aux", "t"]
    now = context_loads(under("class_latency", table))
    assert now == [(table.offsets[names[at]], size) for at, size in was]


def test_a_load_takes_the_size_that_the_field_has() -> None:
    loads = context_loads(under("class_latency", WIDENED))
    assert loads[:2] == [(WIDENED.offsets["task_class"], 4), (WIDENED.offsets["worker"], 8)]


def test_a_missing_field_is_named_with_the_line_that_reads_it() -> None:
    without = _table(*(c for c in EVENT_ROW if c.name != "dep_class"))
    with pytest.raises(Refused) as e:
        under("wait_stats", without)
    assert "the ABI's struct megascope_event has no field dep_class (wait_stats.bpf.c:" in str(e.value)
    assert len(str(e.value).splitlines()) == 1


def test_what_does_not_exist_reads_as_zero_and_is_not_reached() -> None:
    now, later = under("relocated", EVENT_ROW), under("relocated", _table(*EVENT_ROW, Column("lane", "u32", "")))
    assert now.insns.count(POISON) == 1
    assert now.insns.index(POISON) not in verify(now).reachable
    assert POISON not in later.insns
    assert (64, 4) in context_loads(later)


def test_sizes_are_those_of_the_abi() -> None:
    larger = _table(*EVENT_ROW, Column("lane", "u32", ""), Column("comm_set", "u32", ""))
    immediates = {i.imm for i in under("relocated", larger).insns if i.op == 0xB7}
    assert 72 in immediates
    assert 64 not in immediates
    assert 64 in {i.imm for i in under("relocated", EVENT_ROW).insns if i.op == 0xB7}


@with_clang
def test_a_struct_that_the_abi_lacks_is_named(tmp_path: Path) -> None:
    text = """
    struct task_struct { int pid; } MS_RELOCATED;
    SEC("hook/start") int f(void *e) { return READ; }
    """
    read, asked = "((struct task_struct *)e)->pid", "bpf_core_type_exists(struct task_struct)"
    with pytest.raises(Refused, match=r"needs struct task_struct, which the ABI does not have \(given.bpf.c:4: "):
        loader.load(compile_text(tmp_path, text.replace("READ", read)))
    p = loader.load(compile_text(tmp_path, text.replace("READ", asked)))
    assert 1 not in {i.imm for i in p.insns}


@with_clang
@pytest.mark.parametrize("table", [MOVED, ADDED, REMOVED], ids=["moved", "added", "removed"])
@pytest.mark.parametrize("cpu", ["v1", "v3", "v4"])
def test_objects_of_another_minor_become_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Table, cpu: str
) -> None:
    """The header of another minor is rendered and compiled against; loaded here, the program is the same."""
    monkeypatch.setattr(hooks, "EVENT_ROW", table)
    (tmp_path / "megascope.bpf.h").write_text(hooks.render_bpf())
    for source in SOURCES:
        if table is REMOVED and source.name == "relocated.bpf.c":
            continue  # it reads e->peer, which that header does not have
        (tmp_path / source.name).write_text(source.read_text())
        here = loader.load(compile_bpf(source, tmp_path / "here.o", cpu=cpu), name="p")
        there = loader.load(compile_bpf(tmp_path / source.name, tmp_path / "there.o", cpu=cpu), name="p")
        # Only the order in which clang reads two fields may follow their offsets.
        assert sorted(here.insns) == sorted(there.insns)


@with_clang
def test_a_field_of_a_later_minor_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "EVENT_ROW", ADDED)
    (tmp_path / "megascope.bpf.h").write_text(hooks.render_bpf())
    text = 'SEC("hook/start") int f(struct megascope_event *e) { return e->cluster == 3; }'
    with pytest.raises(Refused, match=r"no field cluster \(given.bpf.c:2: SEC"):
        loader.load(compile_text(tmp_path, text))


GUARDS = [
    "if (bpf_core_field_exists(l->lane)) n += l->lane;",
    "if (!bpf_core_field_exists(l->lane)) n += 1; else n += l->lane;",
    "if (bpf_core_field_exists(l->lane) && bpf_core_field_exists(l->task)) n += l->lane;",
    "if (bpf_core_field_size(l->task) > 8) n += l->lane;",
    "if (bpf_core_field_exists(l->lane)) for (int i = 0; i < 5; i++) n += l->lane + helper(n);",
]
LATER = """
struct megascope_event___later { __u64 task; __u32 lane; __u32 wide : 7, narrow : 3; } MS_RELOCATED;
__attribute__((unused)) static __noinline __u64 helper(__u64 x) { return x * 3; }
SEC("hook/start") int f(struct megascope_event *e) {
  struct megascope_event___later *l = (void *)e; __u64 n = e->t;
"""


@with_clang
@pytest.mark.parametrize("cpu", ["v1", "v4"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guarded_read_of_what_is_missing_loads(tmp_path: Path, guard: str, cpu: str) -> None:
    verify(loader.load(compile_text(tmp_path, LATER + guard + " return n; }", cpu=cpu)))


@with_clang
@pytest.mark.parametrize(
    "read",
    [
        "n += l->lane;",
        "if (bpf_core_field_exists(l->task)) n += l->lane;",
        "if (e->step) n += l->lane;",
        "n += bpf_core_field_size(l->lane);",
        "n += bpf_core_field_offset(l->lane);",
    ],
)
def test_an_unguarded_one_does_not(tmp_path: Path, read: str) -> None:
    with pytest.raises(Refused, match=r"no field lane \(given.bpf.c:\d+: "):
        loader.load(compile_text(tmp_path, LATER + read + " return n; }"))


@with_clang
def test_a_bit_field_here_is_a_whole_field_there(tmp_path: Path) -> None:
    """clang reads a bit field through offset, size and two shifts, all relocated."""
    text = """
    struct megascope_event___bits { __u64 t; __u32 tile : 20, rest : 12; } MS_RELOCATED;
    SEC("hook/start") int f(struct megascope_event *e) {
      struct megascope_event___bits *b = (void *)e;
      __u64 v = *(__u32 *)((void *)b + bpf_core_field_offset(b->tile));
      v <<= __builtin_preserve_field_info(b->tile, 4);
      return v >> __builtin_preserve_field_info(b->tile, 5);
    }
    """
    p = loader.load(compile_text(tmp_path, text))
    shifts = [i.imm for i in p.insns if i.op in (0x67, 0x77)]
    assert shifts == [32, 32]
    assert any(i.imm == EVENT_ROW.offsets["tile"] or i.off == EVENT_ROW.offsets["tile"] for i in p.insns)


@with_clang
def test_part_of_a_field_that_changed_its_size_is_refused(tmp_path: Path) -> None:
    text = 'SEC("hook/start") int f(struct megascope_event *e) { return *(__u8 *)&e->task_class; }'
    made = compile_text(tmp_path, text)
    loader.load(made)
    with pytest.raises(Refused, match="has 4 bytes in the ABI and 2 in the object, and is not read as a whole"):
        loader.load(made, contexts={"megascope_event": WIDENED})
