"""One program out of an object's functions: entries first, behind them what they call, and all references resolved.

A reference is a relocation of the object (a map, a global, a function elsewhere) or a call within one section, which
the compiler has already resolved. A function moves as a whole, so that the jumps inside it stay as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from ..c_header import helper_name
from ..helpers import HELPERS
from ..isa import SLOT, Insn, Pseudo, decode
from ..maps import Map
from ..program import MAX_SLOTS, Function, SourceLine
from .btf import Btf
from .btf_ext import BtfExt, CoreRelocation, Line
from .core_relocation import Missing, Relocator
from .elf import UNDEFINED, Elf, Rel, Relocation, Section, Symbol, SymbolType
from .globals import as_map, holds_globals
from .live_code import live
from .map_definitions import SECTION as MAPS
from .map_definitions import of_section
from .unfit import Unfit, nearest

_CALL, _LDDW = 0x85, 0x18


@dataclass(frozen=True)
class Code:
    """A function of the object: slots [begin, end) of a section."""

    name: str
    section: int
    begin: int
    end: int
    local: bool


@dataclass
class Linked:
    """Instructions of all linked functions; where each begins; the maps that they and the object have."""

    insns: list[Insn] = field(default_factory=list)
    begins: dict[Code, int] = field(default_factory=dict)
    maps: list[Map] = field(default_factory=list)
    lines: list[SourceLine] = field(default_factory=list)

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(Function(pc, code.name) for code, pc in self.begins.items())


def functions(elf: Elf) -> list[Code]:
    """Functions of the object in order of place. Raises Unfit for one that lies outside its section, or on another."""
    out = []
    for s in elf.symbols:
        if s.type != SymbolType.FUNC or s.section == UNDEFINED:
            continue
        section = elf.sections[s.section]
        if s.value % SLOT or s.size % SLOT or not s.size or s.value + s.size > len(section.data):
            raise Unfit(f"function {s.name} ({s.size} bytes at {s.value}) does not fit section {section.name}")
        out.append(Code(s.name, s.section, s.value // SLOT, (s.value + s.size) // SLOT, s.local))
    out.sort(key=lambda c: (c.section, c.begin))
    for a, b in pairwise(out):
        if a.section == b.section and b.begin < a.end:
            raise Unfit(f"functions {a.name} and {b.name} share instructions")
    return out


class Linker:
    """Links functions of one object. `relocator` says what the context is like where the program runs."""

    def __init__(self, elf: Elf, btf: Btf, ext: BtfExt, relocator: Relocator, code: Sequence[Code]) -> None:
        """code: all functions of the object."""
        self._elf, self._btf, self._ext, self._relocator = elf, btf, ext, relocator
        self._at = {(c.section, c.begin): c for c in code}
        maps = elf.section(MAPS)
        self._defined = of_section(btf, maps.size) if maps else {}
        self._index = {at: i for i, at in enumerate(self._defined)}
        self._relocations = {
            i: {r.offset: r for r in found if r.type in (Rel.LDDW, Rel.CALL)} for i, found in elf.relocations.items()
        }
        self._missing: dict[int, Missing] = {}
        """by slot of the linked program: what it needs and the ABI lacks"""

    def link(self, entries: Sequence[Code]) -> Linked:
        """Raises Unfit for a reference to what the object does not have, or a field that the ABI does not."""
        out = Linked(maps=list(self._defined.values()))
        self._globals: dict[int, int] = {}
        queue = deque(entries)
        calls: list[tuple[int, Code]] = []
        while queue:
            code = queue.popleft()
            if code in out.begins:
                continue
            out.begins[code] = len(out.insns)
            if len(out.insns) + code.end - code.begin > MAX_SLOTS:
                raise Unfit(f"it has more than {MAX_SLOTS:,} instructions", "split it into several programs")
            called = self._place(code, out)
            calls += called
            queue.extend(c for _, c in called)
        for pc, code in calls:
            out.insns[pc] = out.insns[pc]._replace(src=Pseudo.LOCAL, imm=out.begins[code] - pc - 1)
        self._refuse_missing(out, [out.begins[c] for c in entries])
        return out

    def _place(self, code: Code, out: Linked) -> list[tuple[int, Code]]:
        """Append a function; (slot, function) of its calls."""
        section = self._elf.sections[code.section]
        base = len(out.insns)
        insns = list(decode(section.data[code.begin * SLOT : code.end * SLOT]))
        self._lines(section, code, base, out)
        before = -1
        for r in _within(self._ext.core.get(section.name, []), code):
            slot = r.offset // SLOT - code.begin
            if slot == before or r.offset % SLOT:
                raise Unfit(f"CO-RE relocations of {code.name} do not each have their instruction")
            before = slot
            missing = self._relocator.apply(insns, slot, r)
            if missing:
                self._missing[base + slot] = missing
        calls = []
        relocations = self._relocations.get(code.section, {})
        for i, insn in enumerate(insns):
            relocation = relocations.get((code.begin + i) * SLOT)
            if insn.op == _CALL and (insn.src == Pseudo.LOCAL or relocation):
                calls.append((base + i, self._called(section, code.begin + i, insn, relocation)))
            elif insn.op == _LDDW and relocation:
                insns[i : i + 2] = self._loaded(section, insns[i : i + 2], relocation, out)
            elif insn.op == _LDDW and insn.src:
                raise Unfit(f"{code.name} loads the address of a map that it does not name")
            elif relocation:
                raise Unfit(f"{code.name} refers to {relocation.symbol.name} in an instruction that cannot")
        out.insns += insns
        return calls

    def _called(self, section: Section, slot: int, insn: Insn, relocation: Relocation | None) -> Code:
        if relocation is None:
            where, at = section.index, slot + 1 + insn.imm
        else:
            symbol = relocation.symbol
            if relocation.type != Rel.CALL or symbol.section == UNDEFINED:
                raise _undefined(symbol, "calls")
            where, at = symbol.section, symbol.value // SLOT + insn.imm + 1
        found = self._at.get((where, at))
        if found is None:
            raise Unfit(f"a call at {section.name}+{slot * SLOT} leads to no function's beginning")
        return found

    def _loaded(self, section: Section, pair: list[Insn], relocation: Relocation, out: Linked) -> list[Insn]:
        """A 64-bit load of a symbol's address: a map, or a global."""
        symbol = relocation.symbol
        if relocation.type != Rel.LDDW or len(pair) != 2 or symbol.section == UNDEFINED:
            raise _undefined(symbol, "uses")
        target = self._elf.sections[symbol.section]
        first, second = pair
        at = symbol.value + first.imm
        if target.name == MAPS:
            if at not in self._defined:
                raise Unfit(f"{section.name} refers to {at} bytes into its maps, where none begins")
            return [first._replace(src=Pseudo.MAP, imm=self._index[at]), second._replace(imm=0)]
        if holds_globals(target):
            if not 0 <= at < target.size:
                raise Unfit(f"{section.name} refers to byte {at} of {target.name}, which has {target.size}")
            if target.index not in self._globals:
                self._globals[target.index] = len(out.maps)
                out.maps.append(as_map(self._btf, target))
            index = self._globals[target.index]
            return [first._replace(src=Pseudo.VALUE, imm=index), second._replace(imm=at)]
        if target.name == "maps":
            raise Unfit("its maps are of the kind before BTF", 'define them as struct { … } NAME SEC(".maps")')
        if target.code:
            raise Unfit(f"it takes the address of function {symbol.name}", "call it by its name")
        raise Unfit(f"it refers to section {target.name}", "keep variables in .rodata, .data and .bss")

    def _lines(self, section: Section, code: Code, base: int, out: Linked) -> None:
        known = [x for x in _within(self._ext.lines.get(section.name, []), code) if x.line]
        if not known:
            return
        if known[0].offset // SLOT > code.begin:
            # What stands before belongs to another function's source.
            out.lines.append(SourceLine(base, self._btf.string(known[0].file), 0, 0, ""))
        for x in {x.offset // SLOT: x for x in known}.values():
            file, text = self._btf.string(x.file).removeprefix("./"), self._btf.string(x.text)
            out.lines.append(SourceLine(base + x.offset // SLOT - code.begin, file, x.line, x.column, text))

    def _refuse_missing(self, out: Linked, entries: list[int]) -> None:
        if not self._missing:
            return
        running = live(out.insns, entries)
        for pc in sorted(running & self._missing.keys()):
            line = max((x for x in out.lines if x.pc <= pc and x.line), key=lambda x: x.pc, default=None)
            where = f" ({line.file}:{line.line}: {line.text.strip()})" if line else ""
            raise Unfit(self._missing[pc].why + where, self._missing[pc].todo)


_Placed = TypeVar("_Placed", Line, CoreRelocation)


def _within(records: list[_Placed], code: Code) -> list[_Placed]:
    """Those of the records, sorted by offset, that lie in a function."""
    begin = bisect_left(records, code.begin * SLOT, key=lambda r: r.offset)
    return records[begin : bisect_left(records, code.end * SLOT, key=lambda r: r.offset)]


def _undefined(symbol: Symbol, how: str) -> Unfit:
    names = [helper_name(h) for h in HELPERS]
    todo = nearest(symbol.name, names, "define it in the same file; helpers are declared in megascope.bpf.h")
    return Unfit(f"it {how} {symbol.name}, which is not defined in it", todo)
