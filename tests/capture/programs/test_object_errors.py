"""Everything that an author can get wrong, and the line that he reads."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from compiled import CLANG, OBJECTS, compile_text

from megascope.capture.programs import loader
from megascope.store.errors import MegascopeError, Refused

with_clang = pytest.mark.skipif(CLANG is None, reason="no clang here")
GOOD = (OBJECTS / "class_latency.bpf.o").read_bytes()
MAP = (
    "struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u32); __type(value, __u64); __uint(max_entries, 8); }"
    ' m SEC(".maps");'
)
USE = 'SEC("hook/start") int f(struct megascope_event *e) { __u32 k = 1; return !bpf_map_lookup_elem(&m, &k); }'


def refusal(data: bytes | Path) -> str:
    with pytest.raises(Refused) as e:
        loader.load(data)
    text = str(e.value)
    assert len(text.splitlines()) == 1
    assert text.startswith("cannot load ")
    return text


def changed(at: int, form: str, value: int) -> bytes:
    out = bytearray(GOOD)
    struct.pack_into(form, out, at, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "neither an object nor an image; compile it with clang -target bpf -g -O2 -c"),
        (b"\x7fELF", "it is no ELF object"),
        (GOOD[:100], "section headers"),
        (b'#include "megascope.bpf.h"\n', "it is source; compile it with"),
        (b'int x;\nSEC("hook/start") int f()', "it is source; compile it with"),
        (b"BC\xc0\xde1234", "it is LLVM bitcode; compile it with"),
        (changed(4, "<B", 1), "it is no 64-bit ELF object"),
        (changed(5, "<B", 2), "it is big-endian; compile it with clang -target bpfel"),
        (changed(18, "<H", 62), "it is for x86-64, not for BPF"),
        (changed(18, "<H", 7), "it is for machine 7, not for BPF"),
        (changed(16, "<H", 3), "it is of ELF type 3, no relocatable object"),
        (changed(60, "<H", 0), "it has no sections"),
        (changed(60, "<H", 999), "section headers of 64 bytes"),
        (changed(62, "<H", 999), "its names stand in section 999"),
        (changed(40, "<Q", 1 << 63), "section headers of 64 bytes"),
        (GOOD + bytes(5 << 20), "keep an object below 4,194,304 bytes"),
    ],
)
def test_what_is_no_object(data: bytes, says: str) -> None:
    assert says in refusal(data)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.o", tmp_path):
        with pytest.raises(MegascopeError, match=r"cannot load .*: (No such file|Is a directory)"):
            loader.load(path)


def test_a_damaged_image_is_refused() -> None:
    with pytest.raises(Refused, match=r"checksum|sizes"):
        loader.load(b"MSPROG" + bytes([1]) + bytes(100))


@with_clang
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int x;", 'no function of it runs at a hook; mark one with SEC("hook/complete")'),
        (
            'SEC("hook/compleet") int f(void *e) { return 0; }',
            "names hook 'compleet', which the ABI does not have; did you mean complete?",
        ),
        ('SEC("hook/zzz") int f(void *e) { return 0; }', "hooks are ready, assign"),
        ('SEC("hook/") int f(void *e) { return 0; }', "names hook ''"),
        ('SEC("hook/wait,wait") int f(void *e) { return 0; }', "names wait twice"),
        (
            'SEC("hok/wait") int f(void *e) { return 0; }',
            "section hok/wait is no attach point; did you mean hook/wait?",
        ),
        ('SEC("kprobe/do_sys_open") int f(void *e) { return 0; }', "sections are hook/NAME[,NAME…] and pick"),
        (
            'SEC("hook/wait") int f(void *e) { return 0; } SEC("hook/resume,wait") int g(void *e) { return 0; }',
            "f and g are both for wait; let one call the other",
        ),
        (
            'SEC("hook/wait") int f(void *e) { return 0; } SEC("pick") int g(void *e) { return 0; }',
            "g advises, the others observe; keep pick in an object of its own",
        ),
        ('SEC("hook/wait") static int f(void *e) { return 0; }', "f in hook/wait is static; an entry is not static"),
        (
            'struct pt_regs { long r; }; SEC("hook/wait") int f(struct pt_regs *e) { return e->r; }',
            "f takes struct pt_regs *; an entry takes struct megascope_event *",
        ),
        ('SEC("hook/wait") int f(void *e, int n) { return n; }', "f has 2 parameters"),
        (
            'extern int other(int); SEC("hook/wait") int f(void *e) { return other(1); }',
            "it calls other, which is not defined in it",
        ),
        (
            'extern long ms_map_ad(void *, __u64); SEC("hook/wait") int f(void *e) { return ms_map_ad(e, 1); }',
            "it calls ms_map_ad, which is not defined in it; did you mean ms_map_add?",
        ),
        (
            'extern int LINUX_KERNEL_VERSION; SEC("hook/wait") int f(void *e) { return LINUX_KERNEL_VERSION; }',
            "it uses LINUX_KERNEL_VERSION, which is not defined in it",
        ),
        (
            'static int g(int x) { return x; } SEC("hook/wait") int f(void *e) { return (long)&g != (long)e; }',
            "it takes the address of function",
        ),
        (
            'volatile int big[2000]; SEC("hook/wait") int f(void *e) { return big[7]; }',
            "its globals in .bss have 8,000 bytes; keep it below 4,096",
        ),
        (
            'int odd SEC("strange"); SEC("hook/wait") int f(void *e) { return *(volatile int *)&odd; }',
            "it refers to section strange; keep variables in .rodata, .data and .bss",
        ),
        (
            'struct { int i; } m SEC("maps"); SEC("hook/wait") int f(void *e) { return !bpf_map_lookup_elem(&m, e); }',
            "its maps are of the kind before BTF",
        ),
    ],
)
def test_what_an_object_may_not_have(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(compile_text(tmp_path, text))


@with_clang
@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        (
            "BPF_MAP_TYPE_HASH",
            "5",
            "map m is a BPF_MAP_TYPE_PERCPU_HASH, which does not exist here; a BPF_MAP_TYPE_HASH is per worker",
        ),
        ("BPF_MAP_TYPE_HASH", "27", "BPF_MAP_TYPE_RINGBUF, which does not exist here; ms_emit exports the event's row"),
        ("BPF_MAP_TYPE_HASH", "99", "map m is a type 99, which does not exist here; kinds are BPF_MAP_TYPE_HASH"),
        ("__uint(type, BPF_MAP_TYPE_HASH);", "", "map m does not say its type"),
        ("__type(key, __u32);", "", "map m does not say its key; add __type(key, …)"),
        ("__type(value, __u64);", "", "map m does not say its value"),
        ("__uint(max_entries, 8);", "", "map m does not say max_entries"),
        ("max_entries, 8", "max_entries, 0", "map m has max_entries 0; keep it between 1 and 1,048,576"),
        ("max_entries, 8", "max_entries, 1 << 21", "map m has max_entries 2,097,152"),
        ("max_entries", "max_entires", "map m says max_entires, which no map has here; did you mean max_entries?"),
        ("max_entries, 8", "max_entries, 8); __uint(pinning, 1", "map m says pinning"),
        ("key, __u32", "key, char[65]", "map m has keys of 65 bytes; keep it between 1 and 64"),
        ("value, __u64", "value, char[4097]", "map m has values of 4,097 bytes; keep it between 1 and 4,096"),
        ("value, __u64", "value, struct nowhere", "struct nowhere has no size"),
        (
            "BPF_MAP_TYPE_HASH); __type(key, __u32",
            "BPF_MAP_TYPE_ARRAY); __type(key, __u64",
            "map m has keys of 8 bytes; an array's key is a __u32",
        ),
        ("BPF_MAP_TYPE_HASH", "MS_MAP_TYPE_HIST", "map m has values of 8 bytes; use struct ms_hist, or none"),
        ("BPF_MAP_TYPE_HASH", "MS_MAP_TYPE_STATS", "map m has values of 8 bytes; use struct ms_stats, or none"),
        (
            "max_entries, 8",
            "max_entries, 8); __uint(map_flags, 1",
            "map m has flags 0x1; a map may have BPF_F_RDONLY_PROG",
        ),
        (
            "max_entries, 8",
            "max_entries, 8); __uint(map_flags, BPF_F_RDONLY_PROG | MS_F_AGGREGATE",
            "an aggregation that nobody may write",
        ),
        (
            "max_entries, 8",
            "max_entries, 8); __uint(key_size, 8",
            "map m says key_size 8, but its key type has 4 bytes",
        ),
        ("__uint(max_entries, 8)", "int max_entries", "max_entries of map m is int; use __uint(…) and __type(…)"),
        ("__uint(max_entries, 8)", "int *max_entries", "max_entries of map m is no number; use __uint(max_entries, …)"),
    ],
)
def test_what_a_map_may_not_be(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    text = f"struct nowhere; {MAP}\n{USE}"
    assert was in text
    loader.load(compile_text(tmp_path, text))
    assert says in refusal(compile_text(tmp_path, text.replace(was, becomes, 1)))


@with_clang
def test_without_btf_it_says_how_to_have_some(tmp_path: Path) -> None:
    made = compile_text(tmp_path, f"{MAP}\n{USE}", "-g0")
    assert refusal(made) == f"cannot load {made}: it has no BTF; compile with -g"


@with_clang
def test_a_huge_program_is_refused(tmp_path: Path) -> None:
    body = " ".join(f"x = x * {i + 3} ^ x >> {i % 7 + 1};" for i in range(1500))
    text = f'SEC("hook/start") int f(struct megascope_event *e) {{ __u64 x = e->t; {body} return x; }}'
    assert "more than 4,096 instructions; split it into several programs" in refusal(compile_text(tmp_path, text))


@with_clang
def test_text_of_an_object_cannot_command_a_terminal(tmp_path: Path) -> None:
    text = 'int odd SEC("strange_place"); SEC("hook/wait") int f(void *e) { return *(volatile int *)&odd; }'
    made = compile_text(tmp_path, text).read_bytes()
    assert b"strange_place" in made
    said = refusal(made.replace(b"strange_place", b"red \x1b[31m\n\xff\0\0"))
    assert "it refers to section red \ufffd[31m \ufffd; keep" in said


def test_a_bit_field_of_a_type_without_a_size() -> None:
    """One byte of a sound object: the size of an integer that bit fields are of."""
    data = bytearray((OBJECTS / "shapes.bpf.o").read_bytes())
    assert data[3504] == 4
    data[3504] = 0
    with suppress(Refused):
        loader.load(bytes(data))
