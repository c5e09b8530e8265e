"""The leaves of a key, a value or a data section, from BTF: what makes a map a typed table."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..maps import MAX_VALUE_BYTES, Member, TypeLayout
from .btf import POINTER_BYTES, Btf, Kind, Type, Variable
from .unfit import Unfit

MAX_LEAVES = MAX_VALUE_BYTES
MAX_DEPTH = 16
MAX_STEPS = 1 << 13
"""Types looked at for one layout: empty structs have no leaves, but arrays of them take time."""
_WIDTHS = (1, 2, 4, 8)


def of_type(btf: Btf, type_id: int) -> TypeLayout:
    """Leaves of a type, named with dots ("hot.min", "slot[2].t"); a scalar is one leaf without a name."""
    size = btf.size(type_id)
    name = next((n for n in _names(btf, type_id) if n), "")
    leaves = _Leaves(btf, size)
    leaves.add("", type_id, 0, 0)
    return TypeLayout(name, size, tuple(leaves.found))


def of_section(btf: Btf, name: str, size: int, variables: tuple[Variable, ...]) -> TypeLayout:
    """Leaves of the variables of a data section of `size` bytes."""
    leaves = _Leaves(btf, size)
    for v in variables:
        leaves.add(v.name, v.type, v.offset, 0)
    return TypeLayout(name, size, tuple(leaves.found))


def _names(btf: Btf, type_id: int) -> list[str]:
    plain, t = btf.plain(type_id)
    prefix = "struct " if t.kind == Kind.STRUCT else ""
    own = btf.name(type_id)
    return [own if type_id != plain else own and prefix + own, btf.name(plain) and prefix + btf.name(plain)]


@dataclass
class _Leaves:
    btf: Btf
    size: int
    found: list[Member] = field(default_factory=list)
    steps: int = 0

    def add(self, name: str, type_id: int, at: int, depth: int) -> None:
        """Leaves of a type that stands at byte `at`."""
        self.steps += 1
        if depth > MAX_DEPTH or self.steps > MAX_STEPS:
            raise Unfit(f"type {type_id} holds more than {MAX_DEPTH} levels or {MAX_STEPS:,} parts", "make it smaller")
        plain, t = self.btf.plain(type_id)
        if t.kind in (Kind.STRUCT, Kind.UNION):
            self._members(name, t, at, depth)
        elif t.kind == Kind.ARRAY:
            self._array(name, t, at, depth)
        else:
            self._leaf(Member(name, at, *self._scalar(plain, t)))

    def _members(self, name: str, t: Type, at: int, depth: int) -> None:
        for i in range(len(t.parts)):
            f = self.btf.field(t, i)
            inner = f"{name}.{f.name}" if name and f.name else name or f.name
            if f.bits:
                self._bit_field(inner, f.type, 8 * at + f.bit_offset, f.bits)
            else:
                self.add(inner, f.type, at + f.bit_offset // 8, depth + 1)

    def _array(self, name: str, t: Type, at: int, depth: int) -> None:
        element, count = t.extra[0], t.extra[2]
        plain, inner = self.btf.plain(element)
        if self.btf.character(inner):
            if count:
                self._leaf(Member(name, at, count, "c"))
        elif inner.kind in (Kind.STRUCT, Kind.UNION, Kind.ARRAY):
            size = self.btf.size(element)
            for i in range(count):
                self.add(f"{name}[{i}]", element, at + i * size, depth + 1)
        elif count:
            self._leaf(Member(name, at, *self._scalar(plain, inner), count))

    def _scalar(self, type_id: int, t: Type) -> tuple[int, str]:
        """(size, kind of leaf) of a type that has no parts."""
        size = self.btf.size(type_id)
        if t.kind == Kind.PTR:
            return POINTER_BYTES, "u"
        if t.kind == Kind.FLOAT or size not in _WIDTHS:
            return size, "c"
        return size, "b" if self.btf.boolean(t) else "i" if self.btf.signed(t) else "u"

    def _bit_field(self, name: str, type_id: int, at: int, bits: int) -> None:
        """A bit field that begins `at` bits from the beginning: in its own unit, or where packing moved it, in any."""
        if not name:
            return  # padding
        plain, t = self.btf.plain(type_id)
        own, kind = self._scalar(plain, t)
        for size in (own, *_WIDTHS) if own else _WIDTHS:
            begin = at // (8 * size) * size if size == own else at // 8
            bit = at - 8 * begin
            if size in _WIDTHS and bit + bits <= 8 * size and begin + size <= self.size:
                self._leaf(Member(name, begin, size, kind, 1, bit, bits))
                return
        raise Unfit(f"bit field {name} ({bits} bits at bit {at}) is in no word of its {self.size} bytes")

    def _leaf(self, leaf: Member) -> None:
        if len(self.found) >= MAX_LEAVES:
            raise Unfit(f"a type holds more than {MAX_LEAVES:,} numbers", "make it smaller")
        if leaf.size < 1 or leaf.offset + leaf.size * leaf.count > self.size:
            raise Unfit(f"member {leaf.name or 'of a type'} lies behind the type's {self.size} bytes")
        self.found.append(leaf)
