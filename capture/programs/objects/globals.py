"""Global variables: each data section is an array map of one value, its contents the first value."""

from __future__ import annotations

import dataclasses

from ..maps import MAX_VALUE_BYTES, Map, MapKind
from . import layouts
from .btf import Btf, Variable
from .elf import Elf, Section
from .map_definitions import INDEX_BYTES
from .unfit import Unfit

_NAMES = (".rodata", ".data", ".bss")


def holds_globals(section: Section) -> bool:
    """.rodata, .data, .bss, and their like with a suffix."""
    return any(section.name == n or section.name.startswith(n + ".") for n in _NAMES)


def variables(btf: Btf, section: Section) -> tuple[Variable, ...]:
    """Variables of a data section, in order of offset; none where BTF does not list them (string literals)."""
    described = btf.section(section.name)
    return tuple(sorted(btf.variables(described), key=lambda v: v.offset)) if described else ()


def as_map(btf: Btf, section: Section) -> Map:
    """The map of a data section. Raises Unfit where it is larger than a value may be."""
    if not 1 <= section.size <= MAX_VALUE_BYTES:
        todo = f"keep it below {MAX_VALUE_BYTES:,}, or use an array map"
        raise Unfit(f"its globals in {section.name} have {section.size:,} bytes", todo)
    inside = variables(btf, section)
    return Map(
        section.name,
        MapKind.ARRAY,
        INDEX_BYTES,
        section.size,
        1,
        read_only=section.name.startswith(".rodata"),
        initial=section.data if section.in_file else bytes(section.size),
        value=layouts.of_section(btf, section.name, section.size, inside) if inside else None,
    )


def with_contents(elf: Elf, section: Section, contents: bytes) -> None:
    """Replace what a section holds."""
    elf.sections[section.index] = dataclasses.replace(section, data=contents)
