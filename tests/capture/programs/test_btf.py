"""BTF by hand: what no compiler writes. Types that lead to themselves, that are huge, that are cut off."""

from __future__ import annotations

import struct

import pytest
from compiled import OBJECTS
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.capture.programs.maps import MAX_VALUE_BYTES, Member
from megascope.capture.programs.objects import elf, layouts
from megascope.capture.programs.objects.btf import MAX_STRING, Btf, Kind
from megascope.capture.programs.objects.btf_ext import BtfExt
from megascope.capture.programs.objects.unfit import Unfit

STRINGS = b"\0char\0a\0b\0" + b"x" * 5000 + b"\0"
CHAR, A, B, LONG = 1, 6, 8, 10
U32 = (Kind.INT, 0, 4, struct.pack("<I", 32))
I8 = (Kind.INT, CHAR, 1, struct.pack("<I", 1 << 24 | 8))


def btf(*types: tuple[int, int, int, bytes], count: int = 0, flag: int = 0) -> Btf:
    """(kind, name, word, tail) of each type from id 1 on; count and flag are the last one's."""
    body = b""
    for i, (kind, name, word, tail) in enumerate(types):
        last = i == len(types) - 1
        body += struct.pack("<III", name, kind << 24 | (count | flag << 31 if last else 0), word) + tail
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body), len(body), len(STRINGS))
    return Btf(header + body + STRINGS)


def members(*parts: tuple[int, int, int]) -> bytes:
    return b"".join(struct.pack("<III", *p) for p in parts)


@pytest.mark.parametrize("kind", [Kind.TYPEDEF, Kind.CONST, Kind.VOLATILE, Kind.RESTRICT, Kind.TYPE_TAG])
def test_a_chain_that_leads_to_itself_ends(kind: Kind) -> None:
    types = btf((kind, A, 2, b""), (kind, A, 1, b""))
    for ask in (types.plain, types.size, lambda i: layouts.of_type(types, i)):
        with pytest.raises(Unfit, match="leads to itself"):
            ask(1)
    assert types.modifiers(1) == {kind}


def test_an_array_of_itself_has_no_size() -> None:
    types = btf((Kind.ARRAY, 0, 0, struct.pack("<III", 1, 1, 2)))
    with pytest.raises(Unfit, match="more than 64 dimensions"):
        types.size(1)


def test_a_struct_that_holds_itself_has_no_leaves() -> None:
    types = btf((Kind.STRUCT, A, 8, members((B, 1, 0), (B, 1, 0))), count=2)
    with pytest.raises(Unfit, match="more than 16 levels or 8,192 parts"):
        layouts.of_type(types, 1)


def test_arrays_of_empty_structs_take_no_time() -> None:
    empty = (Kind.STRUCT, A, 0, b"")
    inner = (Kind.ARRAY, 0, 0, struct.pack("<III", 1, 1, 1 << 31))
    outer = (Kind.ARRAY, 0, 0, struct.pack("<III", 2, 1, 1 << 31))
    with pytest.raises(Unfit, match="more than 16 levels or 8,192 parts"):
        layouts.of_type(btf(empty, inner, outer), 3)


def test_more_leaves_than_a_value_has_bytes_are_refused() -> None:
    fields = members(*((B, 1, 0) for _ in range(MAX_VALUE_BYTES + 1)))
    with pytest.raises(Unfit, match="more than 4,096 numbers"):
        layouts.of_type(btf(U32, (Kind.STRUCT, A, 4, fields), count=MAX_VALUE_BYTES + 1), 2)


@pytest.mark.parametrize("at", [32, 1 << 20])
def test_a_member_behind_the_end_is_refused(at: int) -> None:
    with pytest.raises(Unfit, match="member b lies behind the type's 4 bytes"):
        layouts.of_type(btf(U32, (Kind.STRUCT, A, 4, members((B, 1, at))), count=1), 2)


@pytest.mark.parametrize(
    ("size", "at", "bits", "leaf"),
    [
        (4, 3, 5, Member("b", 0, 4, "u", 1, 3, 5)),
        (8, 32 + 7, 20, Member("b", 4, 4, "u", 1, 7, 20)),
        (5, 30, 5, Member("b", 3, 2, "u", 1, 6, 5)),
        (8, 20, 30, Member("b", 2, 8, "u", 1, 4, 30)),
    ],
    ids=["in its unit", "in the second unit", "packed at the end", "no word"],
)
def test_a_bit_field_is_in_a_word_of_its_struct(size: int, at: int, bits: int, leaf: Member) -> None:
    types = btf(U32, (Kind.STRUCT, A, size, members((B, 1, bits << 24 | at))), count=1, flag=1)
    if leaf.offset + leaf.size > size:
        with pytest.raises(Unfit, match="is in no word of its 8 bytes"):
            layouts.of_type(types, 2)
    else:
        assert layouts.of_type(types, 2).members == (leaf,)


def test_text_and_numbers_of_one_byte_differ() -> None:
    array = (Kind.ARRAY, 0, 0, struct.pack("<III", 1, 1, 16))
    assert layouts.of_type(btf(I8, array), 2).members == (Member("", 0, 16, "c"),)
    number = (Kind.INT, A, 1, struct.pack("<I", 1 << 24 | 8))
    assert layouts.of_type(btf(number, array), 2).members == (Member("", 0, 1, "i", 16),)


def test_a_long_name_is_cut() -> None:
    assert btf(U32).string(LONG) == "x" * MAX_STRING
    with pytest.raises(Unfit, match="a name at 9999"):
        btf(U32).string(9999)


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ([(0, A, 0, b"")], "of kind 0"),
        ([(20, A, 0, b"")], "of kind 20"),
        ([(Kind.INT, A, 4, b"")], "is cut off"),
        ([(Kind.PTR, 0, 7, b""), (Kind.PTR, 0, 7, b"\0")], "is cut off"),
    ],
)
def test_damaged_types_are_refused(types: list[tuple[int, int, int, bytes]], says: str) -> None:
    with pytest.raises(Unfit, match=says):
        btf(*types)


def test_an_id_that_is_not_there_is_refused() -> None:
    with pytest.raises(Unfit, match="refers to type 7 of 2"):
        btf((Kind.CONST, 0, 7, b"")).plain(1)


OBJECT = elf.read((OBJECTS / "shapes.bpf.o").read_bytes())
TYPES, EXT = OBJECT.relocated(".BTF") or b"", OBJECT.relocated(".BTF.ext") or b""


@settings(max_examples=200)
@given(st.data())
def test_any_bytes_are_types_or_refused(data: st.DataObject) -> None:
    types, ext = bytearray(TYPES), bytearray(EXT)
    for _ in range(data.draw(st.integers(1, 8))):
        which = data.draw(st.sampled_from((types, ext)))
        which[data.draw(st.integers(0, len(which) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = Btf(bytes(types))
        BtfExt(bytes(ext), found)
    except Unfit:
        return
    for i in range(len(found)):
        try:
            layouts.of_type(found, i)
            found.describe(i)
        except Unfit:
            continue


def test_one_relocation_may_not_outrun_the_section() -> None:
    assert BtfExt(b"", Btf(TYPES)).lines == {}
    for cut in range(1, len(EXT), 7):
        with pytest.raises(Unfit):
            BtfExt(EXT[:cut], Btf(TYPES))
