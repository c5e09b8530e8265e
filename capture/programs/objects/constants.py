"""`--set NAME=VALUE`: `volatile const` variables of an object, checked against their types, set before it is linked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from ..maps import Member
from . import layouts
from .btf import Btf, Kind, Type, Variable
from .elf import Elf, Section
from .globals import holds_globals, variables, with_contents
from .unfit import Unfit, nearest

_NAMED = 12
"""Enumerators that a message names."""
_UNITS = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}(?:\.[0-9]{1,9})?) ?(ns|us|ms|s)?")


class _Constant(NamedTuple):
    section: Section
    variable: Variable
    leaf: Member


def number(text: str) -> int:
    """'20us' → 20,000: a number, in decimal or hex, with a unit of time or none. Raises ValueError for all else."""
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no number with ns, us, ms or s, or no unit")
    sign, digits, unit = match.groups()
    whole = Decimal(int(digits, 16)) if digits[:2] in ("0x", "0X") else Decimal(digits)
    value = whole * _UNITS[unit or ""]
    if value != int(value):
        raise ValueError(f"{text!r} is no whole number of ns" if unit else f"{text!r} is no whole number")
    return -int(value) if sign == "-" else int(value)


def names(elf: Elf, btf: Btf) -> list[str]:
    """The variables of an object that can be set."""
    found = ((s, v) for s in filter(holds_globals, elf.sections) for v in variables(btf, s))
    return [v.name for s, v in found if not _why_not(btf, s, v)]


def apply(elf: Elf, btf: Btf, constants: Mapping[str, int | str]) -> None:
    """Write constants into the object's sections. Raises Unfit for an unknown name, or what its type cannot hold."""
    if not constants:
        return
    of = {v.name: (section, v) for section in filter(holds_globals, elf.sections) for v in variables(btf, section)}
    for name, value in constants.items():
        constant = _find(btf, of, name)
        why = _why_not(btf, constant.section, constant.variable)
        if why:
            raise Unfit(f"{constant.variable.name} {why}", "declare it volatile const")
        section = elf.sections[constant.section.index]
        contents = bytearray(section.data if section.in_file else bytes(section.size))
        _write(contents, btf, constant, name, value)
        with_contents(elf, section, bytes(contents))


def _find(btf: Btf, of: Mapping[str, tuple[Section, Variable]], name: str) -> _Constant:
    """The constant `name`: a variable ("threshold_ns"), a member ("limits.low") or an element ("low[2]") of one."""
    head = re.split(r"[.\[]", name, maxsplit=1)[0]
    if head not in of:
        known = sorted(n for n, (s, v) in of.items() if not _why_not(btf, s, v))
        raise Unfit(f"it has no constant {name!r}", nearest(head, known, f"it has {', '.join(known[:12]) or 'none'}"))
    section, variable = of[head]
    leaves = layouts.of_section(btf, section.name, section.size, (variable,)).members
    parts = {spelling: leaf for leaf in leaves for spelling in _spellings(leaf)}
    if name not in parts:
        otherwise = f"it has {', '.join(list(parts)[:12])}"
        raise Unfit(f"it has no constant {name!r}", nearest(name, parts, otherwise))
    return _Constant(section, variable, parts[name])


def _spellings(leaf: Member) -> list[str]:
    """An array of numbers is set one by one, text as a whole."""
    return [leaf.name] if leaf.count == 1 else [f"{leaf.name}[{i}]" for i in range(leaf.count)]


def _why_not(btf: Btf, section: Section, variable: Variable) -> str:
    """Why a variable cannot be set; empty if it can: only of a `volatile const` is no value compiled in."""
    modifiers = _modifiers(btf, variable.type)
    if Kind.CONST not in modifiers:
        return "is a variable, no constant"
    if Kind.VOLATILE not in modifiers or not section.name.startswith(".rodata"):
        return "is not volatile: its value is compiled in"
    return ""


def _modifiers(btf: Btf, type_id: int) -> frozenset[Kind]:
    found = btf.modifiers(type_id)
    plain, t = btf.plain(type_id)
    return found | btf.modifiers(t.extra[0]) if t.kind == Kind.ARRAY and plain else found


def _write(contents: bytearray, btf: Btf, c: _Constant, name: str, value: int | str) -> None:
    leaf = c.leaf
    at = leaf.offset + (leaf.size * int(name.rpartition("[")[2][:-1]) if leaf.count > 1 else 0)
    if leaf.kind == "c":
        text = str(value).encode()
        if len(text) >= leaf.size:
            raise Unfit(f"{name} holds {leaf.size - 1} bytes of text, {len(text)} are given", "give less")
        contents[at : at + leaf.size] = text.ljust(leaf.size, b"\0")
        return
    bits = leaf.bits or 8 * leaf.size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if leaf.kind == "i" else (0, (1 << bits) - 1)
    if leaf.kind == "b":
        high = 1
    given = _value(btf, c, name, value)
    if not low <= given <= high:
        takes = "true or false" if leaf.kind == "b" else f"{low:,} to {high:,}"
        raise Unfit(f"{name} is set to {value}, which its type does not hold", f"it takes {takes}")
    old = int.from_bytes(contents[at : at + leaf.size], "little")
    mask = (1 << bits) - 1 << leaf.bit_offset
    new = old & ~mask | (given & (1 << bits) - 1) << leaf.bit_offset
    contents[at : at + leaf.size] = new.to_bytes(leaf.size, "little")


def _value(btf: Btf, c: _Constant, name: str, value: int | str) -> int:
    """What is written: a number, true or false, or an enumerator's name."""
    if not isinstance(value, str):
        return int(value)
    words = {"true": 1, "false": 0} if c.leaf.kind == "b" else _enumerators(btf, c.variable)
    if value in words:
        return words[value]
    try:
        return number(value)
    except ValueError as e:
        hint = "it takes a number, with ns, us, ms or s for a time"
        if words:
            known = ", ".join([*words][:_NAMED]) + (", …" if len(words) > _NAMED else "")
            hint = f"it takes {' or '.join(words)}" if c.leaf.kind == "b" else f"it takes {known} or a number"
        raise Unfit(f"{name} is set to {value!r}", nearest(value, words, hint)) from e


def _enumerators(btf: Btf, variable: Variable) -> dict[str, int]:
    t: Type = btf.plain(variable.type)[1]
    return btf.enumerators(t) if t.kind in (Kind.ENUM, Kind.ENUM64) else {}
