"""Damaged and hostile objects: a program or one refusal, never anything else, never for long."""

from __future__ import annotations

import struct

import pytest
from compiled import OBJECTS
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.programs import image, loader
from megascope.capture.programs.isa import encode
from megascope.capture.programs.objects import elf
from megascope.capture.programs.program import MAX_SLOTS
from megascope.store.errors import Refused

GOOD = [p.read_bytes() for p in sorted(OBJECTS.glob("*.bpf.o"))]
INTERESTING = (0, 1, 2, 3, 4, 8, 12, 16, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF8, 0xFFFFFFFF)


def _read_parts(data: bytes) -> list[tuple[int, int]]:
    """(begin, end) of the parts of an object that the loader reads: there, a change matters."""
    (at,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    parts = [(0, 64), (at, at + 64 * count)]
    for i, section in enumerate(elf.read(data).sections):
        _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", data, at + 64 * i)
        if kind != 8 and size and not section.name.startswith((".debug", ".rel.debug", ".llvm")):
            parts.append((offset, offset + size))
    return parts


PARTS = [_read_parts(data) for data in GOOD]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    which = draw(st.integers(0, len(GOOD) - 1))
    out = bytearray(GOOD[which])
    for _ in range(draw(st.integers(1, 6))):
        begin, end = draw(st.sampled_from(PARTS[which]))
        at = draw(st.integers(begin, end - 1))
        how = draw(st.sampled_from(("bit", "byte", "word")))
        if how == "bit":
            out[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "byte":
            out[at] = draw(st.integers(0, 255))
        else:
            at = min(at & ~3, len(out) - 4)
            struct.pack_into("<I", out, at, draw(st.sampled_from(INTERESTING)))
    if draw(st.integers(0, 9)) == 0:
        del out[draw(st.integers(0, len(out))) :]
    return bytes(out)


def _loads_or_is_refused(data: bytes) -> None:
    try:
        p = loader.load(data, name="damaged")
    except Refused as e:
        assert len(str(e).splitlines()) == 1
        assert str(e).isprintable()
        return
    # What loads is sound enough to be carried to an engine, where the verifier looks at it again.
    assert 0 < len(p.insns) <= MAX_SLOTS
    assert len(encode(p.insns)) == 8 * len(p.insns)
    assert all(0 <= e.pc < len(p.insns) for e in p.entries)
    assert all(0 <= x.pc < len(p.insns) for x in (*p.lines, *p.functions))
    assert image.unpack(image.pack(p)) == p


@settings(max_examples=300)
@given(damaged())
def test_damaged_objects(data: bytes) -> None:
    _loads_or_is_refused(data)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(damaged())
def test_many_damaged_objects(data: bytes) -> None:
    _loads_or_is_refused(data)


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_random_bytes_behind_a_header(data: bytes) -> None:
    _loads_or_is_refused(GOOD[0][:64] + data)
    _loads_or_is_refused(data)


@pytest.mark.parametrize("which", range(len(GOOD)))
def test_every_truncation_at_a_section(which: int) -> None:
    for begin, end in PARTS[which]:
        for at in (begin, begin + 1, (begin + end) // 2, end - 1):
            _loads_or_is_refused(GOOD[which][:at])


def _with(base: bytes, **contents: bytes) -> bytes:
    """The object with other contents of some sections, which are appended to it."""
    out = bytearray(base)
    (at,) = struct.unpack_from("<Q", out, 40)
    for section in elf.read(base).sections:
        if section.name in contents:
            struct.pack_into("<QQ", out, at + 64 * section.index + 24, len(out), len(contents[section.name]))
            out += contents[section.name]
    return bytes(out)


CALLS = (OBJECTS / "calls.bpf.o").read_bytes()
BTF = elf.read(CALLS).relocated(".BTF") or b""
SYMBOLS = next(s.data for s in elf.read(CALLS).sections if s.name == ".symtab")


def _btf(types: bytes = b"", strings: bytes = b"") -> bytes:
    _, _, _, header, at, size, text_at, text_size = struct.unpack_from("<HBBIIIII", BTF)
    types = BTF[header + at :][:size] + types
    strings = BTF[header + text_at :][:text_size] + strings
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings


def _ext(lines: bytes, core: bytes) -> bytes:
    rooms = struct.pack("<I", 8), struct.pack("<I", 16) + lines, struct.pack("<I", 16) + core
    sizes = [x for i, room in enumerate(rooms) for x in (sum(map(len, rooms[:i])), len(room))]
    return struct.pack("<HBBI6I", 0xEB9F, 1, 0, 32, *sizes) + b"".join(rooms)


def _section(records: bytes) -> bytes:
    strings = BTF[struct.unpack_from("<I", BTF, 16)[0] + 24 :]
    return struct.pack("<II", strings.index(b"hook/start\0"), len(records) // 16) + records


def _lines(count: int, text: int) -> bytes:
    return _section(
        b"".join(struct.pack("<IIII", i % 14 * 8, text + i % 900, text + i % 900, 1 << 10) for i in range(count))
    )


MANY = 60_000
FUNCTION = b"".join(struct.pack("<IBBHQQ", 1, 2, 0, 2, 8 * i, 8) for i in range(MANY))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_with(CALLS, **{".BTF": _btf(struct.pack("<III", 0, 2 << 24, 0) * MANY)}), None),
        (_with(CALLS, **{".BTF": _btf(struct.pack("<III", 0, 2 << 24, 0) * 70_000)}), "more than 65,536 types"),
        (_with(CALLS, **{".BTF": _btf(struct.pack("<III", 1, 15 << 24, 0) * MANY)}), None),
        (_with(CALLS, **{".BTF": _btf(b"", b"\xff" * 4000 + b"\0"), ".BTF.ext": _ext(_lines(MANY, 300), b"")}), None),
        (_with(CALLS, **{".BTF.ext": _ext(_lines(70_000, 1), b"")}), "more than 65,536 source lines"),
        (_with(CALLS, **{".BTF.ext": _ext(b"", _section(struct.pack("<4I", 8, 1, 1, 0) * MANY))}), "CO-RE relocation"),
        (_with(CALLS, **{".symtab": SYMBOLS + bytes(24) * MANY}), None),
        (_with(CALLS, **{".symtab": SYMBOLS + bytes(24) * 70_000}), "more than 65,536 symbols"),
        (_with(CALLS, **{".symtab": SYMBOLS + FUNCTION}), "does not fit section .text"),
        (_with(CALLS, **{".text": bytes(8 * MANY), ".symtab": SYMBOLS + FUNCTION}), "share instructions"),
    ],
    ids=[
        "types",
        "too many types",
        "sections",
        "lines",
        "too many lines",
        "core",
        "symbols",
        "too many",
        "f",
        "functions",
    ],
)
def test_objects_that_are_large_in_one_thing(data: bytes, says: str | None) -> None:
    """Each loads or is refused in time: a test that takes minutes is ended by the runner."""
    if says is None:
        assert loader.load(data).entries == loader.load(CALLS).entries
    else:
        with pytest.raises(Refused, match=says):
            loader.load(data)
