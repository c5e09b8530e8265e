"""CO-RE: instructions that hold an offset or a size of the context's fields are corrected to the ABI they run under.

The object says by name what each such instruction means (`CoreRelocation`); the value that clang wrote is what its own
header had. What the ABI lacks is not an error yet: a program may ask first (bpf_core_field_exists) and never come
there. Such an instruction becomes a jump to itself, which no verifier lets run, and `Missing` says what it wanted.
Source: the rules of libbpf's relo_core.c, as the kernel's documentation states them ("BPF CO-RE Relocations").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ....store.tables import EVENT_ROW, Table
from ..isa import Insn, Kind, operation
from .btf import Btf, Type
from .btf import Kind as TypeKind
from .btf_ext import CoreRelocation
from .unfit import Unfit, nearest

POISON = Insn(0x05, off=-1)
MAX_SPEC = 64
FLAVOUR = "___"
CONTEXTS: dict[str, Table] = {"megascope_event": EVENT_ROW}
"""Name of a struct → what the ABI that the program runs under has for it."""


class Core(IntEnum):
    """What an instruction holds."""

    FIELD_OFFSET = 0
    FIELD_SIZE = 1
    FIELD_EXISTS = 2
    FIELD_SIGNED = 3
    FIELD_LSHIFT = 4
    FIELD_RSHIFT = 5
    TYPE_ID_LOCAL = 6
    TYPE_ID_TARGET = 7
    TYPE_EXISTS = 8
    TYPE_SIZE = 9
    ENUM_EXISTS = 10
    ENUM_VALUE = 11
    TYPE_MATCHES = 12


_FIELD = frozenset(k for k in Core if k.name.startswith("FIELD"))
_ASKS = frozenset((Core.FIELD_EXISTS, Core.TYPE_EXISTS, Core.ENUM_EXISTS, Core.TYPE_MATCHES))
_NUMBERS = frozenset((TypeKind.INT, TypeKind.ENUM, TypeKind.ENUM64))


class Missing(NamedTuple):
    """Why an instruction is poison: what the ABI lacks, and what to do."""

    why: str
    todo: str


@dataclass(frozen=True)
class _Place:
    """A field. offset, size: bytes of the word that it is read by; bit, bits: where in that word it stands."""

    offset: int
    size: int
    bit: int
    bits: int
    signed: bool
    bit_field: bool = False

    def value(self, kind: Core) -> int:
        match kind:
            case Core.FIELD_OFFSET:
                return self.offset
            case Core.FIELD_SIZE:
                return self.size
            case Core.FIELD_SIGNED:
                return int(self.signed)
            case Core.FIELD_LSHIFT:
                return 64 - self.bit - self.bits
            case Core.FIELD_RSHIFT:
                return 64 - self.bits
        return 1


class Relocator:
    """Corrects instructions of one object for `contexts`, by default the ABI of this version."""

    def __init__(self, btf: Btf, contexts: dict[str, Table] | None = None) -> None:
        self._btf = btf
        self._contexts = CONTEXTS if contexts is None else contexts

    def apply(self, code: list[Insn], slot: int, relocation: CoreRelocation) -> Missing | None:
        """Correct the instruction at `slot`; what is missing if it became poison. Raises Unfit for a senseless one."""
        if relocation.kind not in Core.__members__.values():
            raise Unfit(f"a CO-RE relocation is of kind {relocation.kind}", "compile it with clang 14 to 19")
        kind = Core(relocation.kind)
        if kind == Core.TYPE_ID_LOCAL:
            _patch(code, slot, relocation.type, None)
            return None
        name = self._btf.name(self._btf.plain(relocation.type)[0]).partition(FLAVOUR)[0]
        found = self._resolve(kind, name, relocation)
        if isinstance(found, Missing):
            if kind not in _ASKS:
                slots = 2 if code[slot].op == 0x18 else 1
                code[slot : slot + slots] = [POISON] * len(code[slot : slot + slots])
                return found
            _patch(code, slot, 0, None)
            return None
        new, old, resized = found
        if resized:
            _resize(code, slot, *resized)
        _patch(code, slot, new, old)
        return None

    def _resolve(
        self, kind: Core, name: str, relocation: CoreRelocation
    ) -> Missing | tuple[int, int | None, tuple[_Place, _Place] | None]:
        """(value under the ABI, value in the object if it can be told, places if the field has another size)."""
        indices = _indices(self._btf.string(relocation.access))
        target = self._contexts.get(name)
        if target is None:
            todo = nearest(name, self._contexts, f"it has struct {', struct '.join(self._contexts)}")
            return Missing(f"it needs {self._btf.describe(relocation.type)}, which the ABI does not have", todo)
        if kind in (Core.TYPE_SIZE, Core.TYPE_EXISTS, Core.TYPE_MATCHES):
            size = target.dtype.itemsize
            return (size, self._btf.size(relocation.type), None) if kind == Core.TYPE_SIZE else (1, 1, None)
        if kind not in _FIELD:
            return Missing(f"it asks {kind.name.lower().replace('_', ' ')} of {name}", "ask for fields and sizes only")
        path, here = self._local(relocation.type, indices)
        if not path:
            raise Unfit(f"a CO-RE relocation asks of struct {name} what only a field has")
        if path not in target.names:
            todo = "load it where the ABI has that field, or ask bpf_core_field_exists first"
            close = nearest(path, target.names, todo)
            return Missing(f"the ABI's struct {name} has no field {path}", close)
        if here is None:
            why = f"field {path} of struct {name} is a number in the ABI, and something else in the object"
            return Missing(why, "use megascope.bpf.h")
        size = target[path].bits // 8
        there = _Place(target.offsets[path], size, 0, 8 * size, False)
        moved = there.size != here.size and kind == Core.FIELD_OFFSET
        # Compilers differ in the word that they read a bit field by.
        return there.value(kind), None if here.bit_field else here.value(kind), (here, there) if moved else None

    def _local(self, root: int, indices: list[int]) -> tuple[str, _Place | None]:
        """Path of names to a field in the object's own type, and its place if it is a number."""
        type_id, t = self._btf.plain(root)
        if indices[0]:
            return f"[{indices[0]}]", None
        names: list[str] = []
        at, bits = 0, 0
        for i in indices[1:]:
            if t.kind in (TypeKind.STRUCT, TypeKind.UNION):
                if i >= len(t.parts):
                    raise Unfit(f"a CO-RE relocation names member {i} of {self._btf.describe(type_id)}")
                member = self._btf.field(t, i)
                names += [member.name] if member.name else []
                at, bits, after = at + member.bit_offset, member.bits, member.type
            elif t.kind == TypeKind.ARRAY:
                names.append(f"[{i}]")
                at, bits, after = at + 8 * i * self._btf.size(t.extra[0]), 0, t.extra[0]
            else:
                raise Unfit(f"a CO-RE relocation looks into {self._btf.describe(type_id)}")
            type_id, t = self._btf.plain(after)
        return ".".join(names), self._place(type_id, t, at, bits)

    def _place(self, type_id: int, t: Type, at: int, bits: int) -> _Place | None:
        if t.kind not in _NUMBERS:
            return None
        size = self._btf.size(type_id)
        if size not in (1, 2, 4, 8):
            return None
        signed = self._btf.signed(t)
        if not bits:
            return _Place(at // 8, size, 0, 8 * size, signed)
        offset = at // (8 * size) * size
        return _Place(offset, size, at - 8 * offset, bits, signed, True)


def _indices(access: str) -> list[int]:
    parts = access.split(":")
    if len(parts) > MAX_SPEC or not all(p.isascii() and p.isdigit() and len(p) <= 6 for p in parts):
        raise Unfit(f"a CO-RE relocation has the path {access[:40]!r}")
    return [int(p) for p in parts]


def _patch(code: list[Insn], slot: int, new: int, old: int | None) -> None:
    """Put `new` where `old` stands (None: not checked): in the immediate, or in the offset of a memory access."""
    insn = code[slot]
    op = operation(insn)
    match op.kind if op else None:
        case Kind.ALU if op and not op.register:
            held, patched = insn.imm, insn._replace(imm=new)
        case Kind.LOAD | Kind.LOADSX | Kind.STORE:
            held, patched = insn.off, insn._replace(off=new & 0x7FFF)
        case Kind.WIDE if insn.src == 0:
            held, patched = insn.imm, insn._replace(imm=new)
        case _:
            raise Unfit(f"a CO-RE relocation changes an instruction ({insn.op:#04x}) that holds no field")
    if old is not None and held != old:
        raise Unfit(f"a CO-RE relocation expects {old} in an instruction that holds {held}")
    code[slot] = patched


def _resize(code: list[Insn], slot: int, here: _Place, there: _Place) -> None:
    """A field of another size: a whole unsigned load can follow it, anything else cannot."""
    op = operation(code[slot])
    if op is None or op.kind not in (Kind.LOAD, Kind.LOADSX, Kind.STORE):
        return  # an address; who reads through it asks for the size as well (bpf_core_field_size)
    if op.kind != Kind.LOAD or op.size != here.size or here.signed or here.bit_field:
        why = f"a field has {there.size} bytes in the ABI and {here.size} in the object, and is not read as a whole"
        raise Unfit(why, "compile it with this version's megascope.bpf.h")
    modes = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
    code[slot] = code[slot]._replace(op=code[slot].op & ~0x18 | modes[there.size])
