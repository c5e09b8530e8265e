"""--set: constants by name, member and element, checked by type and range, written where the program reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiled import CLANG, OBJECTS, compile_text
from hypothesis import given
from hypothesis import strategies as st

from megascope.capture.programs import loader
from megascope.capture.programs.maps import Map
from megascope.capture.programs.objects.constants import number
from megascope.store.errors import Refused


def rodata(name: str, constants: dict[str, int | str]) -> tuple[Map, dict[str, int]]:
    """The map of .rodata, and its integers by leaf name (arrays: by element)."""
    p = loader.load(OBJECTS / f"{name}.bpf.o", constants)
    (m,) = (m for m in p.maps if m.name == ".rodata")
    assert m.value is not None
    out = {}
    for leaf in m.value.members:
        for i in range(leaf.count):
            at = leaf.offset + i * leaf.size
            word = int.from_bytes(m.initial[at : at + leaf.size], "little", signed=leaf.kind == "i")
            out[leaf.name if leaf.count == 1 else f"{leaf.name}[{i}]"] = word
    return m, out


def test_only_what_is_set_changes() -> None:
    before, after = (
        rodata("globals", {})[1],
        rodata("globals", {"limits.high": "20us", "factor": 9, "level": "LEVEL_HIGH"})[1],
    )
    changed = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
    assert changed == {"limits.high": (10_000, 20_000), "factor": (2, 9), "level": (0, 3)}


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("limits.low", "1.5us", 1500),
        ("limits.low", "0x10", 16),
        ("limits.low", "18446744073709551615", (1 << 64) - 1),
        ("limits.low", "2 s", 2_000_000_000),
        ("limits.offset", "-7", -7),
        ("limits.offset", "-2147483648", -(1 << 31)),
        ("limits.enabled", "false", 0),
        ("limits.enabled", "true", 1),
        ("limits.enabled", "1", 1),
        ("limits.weight[2]", "255", 255),
        ("level", "3", 3),
        ("level", "LEVEL_HIGH", 3),
    ],
)
def test_a_value_is_what_was_said(name: str, value: str, holds: int) -> None:
    assert rodata("globals", {name: value})[1][name] == holds


def test_text_is_set_whole_and_ends_with_a_zero() -> None:
    m, _ = rodata("globals", {"label": "fast"})
    assert m.value is not None
    (leaf,) = (x for x in m.value.members if x.name == "label")
    assert m.initial[leaf.offset : leaf.offset + leaf.size] == b"fast\0\0\0\0"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("limits.lwo", "1", "no constant 'limits.lwo'; did you mean limits.low?"),
        ("limit", "1", "no constant 'limit'; did you mean limits?"),
        ("zzz", "1", "no constant 'zzz'; it has factor, label, level, limits"),
        ("limits", "1", "no constant 'limits'; did you mean limits."),
        ("limits.low", "-1", "limits.low is set to -1, which its type does not hold; it takes 0 to"),
        ("limits.low", "18446744073709551616", "which its type does not hold"),
        ("limits.offset", "2147483648", "it takes -2,147,483,648 to 2,147,483,647"),
        ("limits.weight[0]", "256", "it takes 0 to 255"),
        ("limits.weight[4]", "1", "no constant 'limits.weight[4]'"),
        ("limits.weight", "1", "no constant 'limits.weight'; did you mean limits.weight["),
        ("limits.enabled", "2", "it takes true or false"),
        ("limits.enabled", "perhaps", "'perhaps'; it takes true or false"),
        ("level", "none", "'none'; it takes LEVEL_LOW, LEVEL_HIGH or a number"),
        ("limits.enabled", "ture", "'ture'; did you mean true?"),
        ("limits.low", "20 parsecs", "it takes a number, with ns, us, ms or s for a time"),
        ("limits.low", "1.5", "it takes a number"),
        ("limits.low", "", "it takes a number"),
        ("level", "LEVEL_HIHG", "did you mean LEVEL_HIGH?"),
        ("label", "much too long", "label holds 7 bytes of text, 13 are given"),
        ("total", "1", "total is a variable, no constant; declare it volatile const"),
        ("first_step", "1", "first_step is a variable, no constant"),
        ("table[0]", "1", "table is not volatile: its value is compiled in; declare it volatile const"),
    ],
)
def test_what_cannot_be_set_is_refused_in_a_line(name: str, value: str, says: str) -> None:
    with pytest.raises(Refused, match=re.escape(says)) as e:
        loader.load(OBJECTS / "globals.bpf.o", {name: value})
    assert len(str(e.value).splitlines()) == 1


def test_an_object_without_constants_says_so() -> None:
    with pytest.raises(Refused, match="no constant 'x'; it has none"):
        loader.load(OBJECTS / "pairing.bpf.o", {"x": 1})


def test_constants_of_an_image_are_settled() -> None:
    from megascope.capture.programs import image

    made = image.pack(loader.load(OBJECTS / "globals.bpf.o", {"factor": 5}))
    with pytest.raises(Refused, match="constants of an image are settled"):
        loader.load(made, {"factor": 6})


@given(st.integers(0, 10**9), st.sampled_from([("", 1), ("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)]))
def test_a_number_with_a_unit(n: int, unit: tuple[str, int]) -> None:
    assert number(f"{n}{unit[0]}") == n * unit[1]
    assert number(f"-{n} {unit[0]}".strip()) == -n * unit[1]
    assert number(f"{n}.5s") == n * 10**9 + 5 * 10**8


@given(st.text(max_size=12))
def test_any_other_text_is_no_number(text: str) -> None:
    try:
        assert isinstance(number(text), int)
    except ValueError:
        return
    assert re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|[0-9]+(\.[0-9]+)?) ?(ns|us|ms|s)?\s*", text)


@pytest.mark.skipif(CLANG is None, reason="no clang here")
def test_bit_fields_and_enums_of_64_bits(tmp_path: Path) -> None:
    text = """
    enum wide { WIDE_A = 1ull << 40, WIDE_B = 5 };
    struct bits { __u32 a : 3, b : 5; __s32 c : 4; };
    volatile const struct bits bits = {1, 2, 3};
    volatile const enum wide wide = WIDE_B;
    SEC("hook/start") int f(struct megascope_event *e) { return bits.a + bits.b + bits.c + wide; }
    """
    made = compile_text(tmp_path, text)

    def contents(constants: dict[str, int | str]) -> bytes:
        (m,) = loader.load(made, constants).maps
        return m.initial

    assert contents({})[0] == 1 | 2 << 3
    assert contents({"bits.b": 31})[0] == 1 | 31 << 3
    assert contents({"bits.c": -8, "bits.a": 7})[:2] == bytes((7 | 2 << 3, 8))
    assert (1 << 40).to_bytes(8, "little") in contents({"wide": "WIDE_A"})
    for name, value in (("bits.a", 8), ("bits.c", 8), ("bits.c", -9)):
        with pytest.raises(Refused, match="which its type does not hold"):
            contents({name: value})
