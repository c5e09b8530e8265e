"""What the loader makes of clang's objects: entries, maps, types, lines; each fact stands here, not in the loader."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from compiled import CLANG, OBJECTS, SOURCES, compile_bpf, compile_text
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from megascope.capture.programs import image, loader, maps
from megascope.capture.programs.helpers import HELPERS
from megascope.capture.programs.isa import Kind, Pseudo, operation
from megascope.capture.programs.maps import MapKind, Member
from megascope.capture.programs.objects import elf
from megascope.capture.programs.program import Program
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

NAMES = [p.name.removesuffix(".bpf.c") for p in SOURCES]
with_clang = pytest.mark.skipif(CLANG is None, reason="no clang here")


def stored(name: str, **constants: str) -> Program:
    return loader.load(OBJECTS / f"{name}.bpf.o", constants)


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_object_loads_and_is_an_image(name: str) -> None:
    p = stored(name)
    assert p.name == name
    assert image.unpack(image.pack(p)) == p
    assert loader.load(image.pack(p)) == p
    assert all(e.name in {f.name for f in p.functions if f.pc == e.pc} for e in p.entries)
    assert all(0 <= m < len(p.maps) for m in _map_references(p))


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_has_its_source_line(name: str) -> None:
    p = stored(name)
    source = (OBJECTS / f"{name}.bpf.c").read_text().splitlines()
    for pc in range(len(p.insns)):
        line = p.line(pc)
        assert line is not None
        assert line.file == f"{name}.bpf.c"
        assert source[line.line - 1] == line.text


@pytest.mark.parametrize("name", NAMES)
def test_no_path_of_a_machine_is_in_an_object(name: str) -> None:
    assert not re.findall(rb"/(?:home|root|work|usr|tmp|build)\b[^\0]*", (OBJECTS / f"{name}.bpf.o").read_bytes())


def _map_references(p: Program) -> set[int]:
    return {i.imm for i in p.insns if i.op == 0x18 and i.src in (Pseudo.MAP, Pseudo.VALUE)}


def test_the_objects_between_them_use_everything() -> None:
    programs = [stored(n) for n in NAMES]
    called = {
        i.imm for p in programs for i in p.insns if (op := operation(i)) and op.kind == Kind.CALL and not op.register
    }
    assert {h.id for h in HELPERS} <= called
    assert {m.kind for p in programs for m in p.maps} == set(MapKind)
    assert {h for p in programs for e in p.entries for h in e.hooks} == {0, 2, 3, 4, 5, 6, 8, 9, 10, 13}


@pytest.mark.parametrize("name", NAMES)
def test_sections_symbols_and_relocations_are_what_another_reader_sees(name: str) -> None:
    data = (OBJECTS / f"{name}.bpf.o").read_bytes()
    ours, theirs = elf.read(data), ELFFile(io.BytesIO(data))
    assert [(s.name, s.size) for s in ours.sections] == [(s.name, s["sh_size"]) for s in theirs.iter_sections()]
    for mine, other in zip(ours.sections, theirs.iter_sections(), strict=True):
        if other["sh_type"] != "SHT_NOBITS":
            assert mine.data == other.data()
    table = theirs.get_section_by_name(".symtab")
    assert [(s.value, s.size) for s in ours.symbols] == [(s["st_value"], s["st_size"]) for s in table.iter_symbols()]
    named = [(s.name, n.name) for s, n in zip(ours.symbols, table.iter_symbols(), strict=True) if n.name]
    assert all(a == b for a, b in named)
    for section in theirs.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] in ours.relocations:
            mine_ = [(r.offset, r.type, ours.symbols.index(r.symbol)) for r in ours.relocations[section["sh_info"]]]
            found = [(r["r_offset"], r["r_info_type"], r["r_info_sym"]) for r in section.iter_relocations()]
            assert [m[:2] for m in mine_] == [f[:2] for f in found]
            assert [ours.symbols[m[2]] for m in mine_] == [ours.symbols[f[2]] for f in found]


def test_entries_are_linked_with_what_they_call_and_nothing_else() -> None:
    p = stored("calls")
    hooks = {e.name: e.hooks for e in p.entries}
    assert hooks == {"start": (HOOK_BY_NAME["start"].id,), "complete": (HOOK_BY_NAME["complete"].id,)}
    assert sorted(f.name for f in p.functions) == ["bucket", "complete", "mix", "start"]
    begins = {f.pc: f.name for f in p.functions}
    calls = [(pc, pc + 1 + i.imm) for pc, i in enumerate(p.insns) if i.op == 0x85 and i.src == Pseudo.LOCAL]
    assert len(calls) == 5
    ends = sorted([*begins, len(p.insns)])

    def function(pc: int) -> str:
        return begins[max(b for b in ends if b <= pc)]

    assert {(function(at), begins[to]) for at, to in calls} == {
        ("start", "bucket"),
        ("complete", "bucket"),
        ("complete", "mix"),
        ("bucket", "mix"),
    }


def test_several_hooks_share_an_entry() -> None:
    p = stored("extremes")
    (entry,) = p.entries
    assert entry.hooks == tuple(HOOK_BY_NAME[n].id for n in ("complete", "resume", "receive"))
    assert p.mask == sum(1 << HOOK_BY_NAME[n].id for n in ("complete", "resume", "receive"))


def test_pick_is_advice() -> None:
    p = stored("pick")
    assert (p.kind, p.entries[0].hooks, p.mask) == ("advise", (0,), 0)
    assert stored("loops").kind == "observe"


def test_maps_are_what_their_definitions_say() -> None:
    by_name = {m.name: m for n in ("wait_stats", "class_latency", "requests", "feedback") for m in stored(n).maps}
    waited = by_name["waited"]
    assert (waited.kind, waited.key_size, waited.value_size) == (MapKind.STATS, 8, maps.STATS_BYTES)
    assert (waited.max_entries, waited.aggregate, waited.shared, waited.value) == (512, True, False, None)
    assert waited.key is not None
    assert [(x.name, x.offset, x.size, x.kind) for x in waited.key.members] == [
        ("dep_class", 0, 1, "u"),
        ("rank", 1, 1, "u"),
        ("task_class", 2, 2, "u"),
        ("dep", 4, 4, "u"),
    ]
    begun = by_name["begun"]
    assert (begun.kind, begun.max_entries, begun.aggregate, begun.shared) == (MapKind.ARRAY, 5, True, True)
    assert (by_name["latency"].kind, by_name["latency"].value_size) == (MapKind.HIST, maps.VALUE_BYTES)
    alive = by_name["alive"]
    assert (alive.key_size, alive.value_size, alive.key, alive.value) == (4, 16, None, None)
    engine = by_name["engine"]
    assert (engine.kind, engine.read_only, engine.value_size) == (MapKind.FEEDBACK, True, maps.FEEDBACK_BYTES)


def test_a_value_of_every_shape_is_flattened() -> None:
    (states,) = stored("shapes").maps
    assert states.key is not None
    assert states.key.name == "struct span"
    assert states.value is not None
    assert (states.value.name, states.value.size) == ("struct state", 72)
    assert list(states.value.members) == [
        Member("spans[0].begin", 0, 8),
        Member("spans[0].end", 8, 8),
        Member("spans[1].begin", 16, 8),
        Member("spans[1].end", 24, 8),
        Member("phase", 32, 4),
        Member("change", 36, 4, "i"),
        Member("late", 40, 1, "b"),
        Member("tag", 41, 7, "c"),
        Member("depth", 48, 4, "u", 1, 0, 12),
        Member("lane", 48, 4, "u", 1, 12, 5),
        Member("hot", 48, 4, "u", 1, 20, 1),
        Member("drift", 52, 2, "i"),
        Member("last", 54, 1, "u", 3),
        Member("tile", 60, 4),
        Member("low", 60, 2),
        Member("high", 62, 2),
        Member("where", 64, 8),
    ]


def test_a_scalar_is_one_leaf_without_a_name() -> None:
    running, latency, unpaired = stored("pairing").maps
    assert running.key == maps.TypeLayout("__u64", 8, (Member("", 0, 8),))
    assert latency.key == maps.TypeLayout("__u16", 2, (Member("", 0, 2),))
    assert unpaired.value == maps.TypeLayout("__u64", 8, (Member("", 0, 8),))
    (digits, _) = stored("loops").maps
    assert digits.value == maps.TypeLayout("", 16, (Member("", 0, 8, "u", 2),))


def test_global_sections_are_maps_with_their_contents() -> None:
    found = {m.name: m for m in stored("globals").maps}
    assert set(found) == {".rodata", ".data", ".bss"}
    assert all((m.kind, m.key_size, m.max_entries) == (MapKind.ARRAY, 4, 1) for m in found.values())
    assert [found[n].read_only for n in (".rodata", ".data", ".bss")] == [True, False, False]
    assert found[".data"].initial == b"\xff\xff\xff\xff"
    assert found[".bss"].initial == bytes(16)
    rodata = found[".rodata"]
    assert rodata.value is not None
    leaves = {x.name: x for x in rodata.value.members}
    assert {"limits.low", "limits.weight", "level", "label", "factor", "table"} <= set(leaves)
    at = leaves["limits.high"].offset
    assert rodata.initial[at : at + 8] == (10000).to_bytes(8, "little")
    at = leaves["table"].offset
    assert rodata.initial[at : at + 32] == b"".join(n.to_bytes(4, "little") for n in (1, 1, 2, 3, 5, 8, 13, 21))


@with_clang
def test_a_data_section_that_nothing_uses_is_left_out(tmp_path: Path) -> None:
    text = """
    __u64 never; volatile const __u32 unread = 3; __u32 used = 1;
    SEC("hook/start") int f(struct megascope_event *e) { return used; }
    """
    assert [m.name for m in loader.load(compile_text(tmp_path, text)).maps] == [".data"]


@with_clang
@pytest.mark.parametrize("optimise", ["-O1", "-O2", "-Os"])
@pytest.mark.parametrize("cpu", ["v1", "v2", "v3", "v4"])
def test_every_cpu_and_optimisation_loads(tmp_path: Path, cpu: str, optimise: str) -> None:
    for source in SOURCES:
        fresh = loader.load(compile_bpf(source, tmp_path / "x.o", cpu=cpu, optimise=optimise))
        old = stored(source.name.removesuffix(".bpf.c"))
        assert [(e.name, e.hooks) for e in fresh.entries] == [(e.name, e.hooks) for e in old.entries]
        assert sorted(map(repr, fresh.maps)) == sorted(map(repr, old.maps))


@with_clang
def test_the_header_declares_every_helper_by_its_number(tmp_path: Path) -> None:
    names = {h.id: ("bpf_" if h.id < 1000 else "ms_") + h.name for h in HELPERS}
    # Whatever the arguments mean: this is compiled, never verified.
    arguments = {"map": "&m", "key": "&k", "value": "&k", "flags": "1", "n": "k", "event": "e"}
    header = (loader.Path(elf.__file__).parents[2] / "device" / "megascope.bpf.h").read_text()
    calls = []
    for name in names.values():
        (declared,) = re.findall(rf"\(\*const {name}\)\((.*)\) = ", header)
        given = (
            ", ".join(arguments[a.split()[-1].strip("*")] for a in declared.split(", ")) if declared != "void" else ""
        )
        calls.append(f"r += (__u64){name}({given});")
    text = f"""
    struct {{ __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u64); __type(value, __u64); __uint(max_entries, 1); }}
    m SEC(".maps");
    SEC("hook/start") int f(struct megascope_event *e) {{ __u64 k = e->t, r = 0; {" ".join(calls)} return r; }}
    """
    p = loader.load(compile_text(tmp_path, text))
    assert [i.imm for i in p.insns if i.op == 0x85] == list(names)


@with_clang
def test_the_context_of_the_header_is_relocated_field_by_field(tmp_path: Path) -> None:
    reads = " + ".join(f"e->{c.name}" for c in EVENT_ROW)
    p = loader.load(compile_text(tmp_path, f'SEC("hook/start") int f(struct megascope_event *e) {{ return {reads}; }}'))
    loads = {i.off for i in p.insns if (op := operation(i)) and op.kind == Kind.LOAD and i.src in (1, 6)}
    assert loads == set(EVENT_ROW.offsets.values())
