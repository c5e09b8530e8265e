"""Random programs that are safe by construction, in two kinds: whose effects commute, and serial ones that do anything.

r9 holds the context, r6 to r8 numbers; the frame of the entry has numbers at -8 … -64, the counter of a loop at -72, a
key at -80 and a value at -96 … -128. A program is verified in the sense that what its verdict says of it is so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hand_made import COMPLETE

from megascope.capture.programs.helpers import HELPER_BY_NAME
from megascope.capture.programs.isa import Insn, Kind, operation
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Entry, Function, Program
from megascope.capture.programs.verdict import Access, Region, Verdict
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

START = HOOK_BY_NAME["start"].id
COST = 20_000
NUMBERS = (6, 7, 8)
SLOTS = tuple(range(-64, 0, 8))
COUNTER, KEY, VALUE = -72, -80, -128
FRAME, LEAF = 128, 48
COLUMNS = tuple((EVENT_ROW.offsets[n], EVENT_ROW.dtype[n].itemsize) for n in EVENT_ROW.names)
SIZE_CODE = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}
ODD = (0, 1, 2, 3, 7, 31, 32, 63, 64, 255, 1000, 2**31 - 1, -1, -2, -(2**31), -32)


def upserted(kind: MapKind) -> tuple[str, ...]:
    """Helpers that commute, on maps of a kind."""
    return tuple(h.name for h in HELPER_BY_NAME.values() if h.name[:4] in ("map_", "hist", "stat") and kind in h.maps)


@dataclass
class Generator:
    """Makes one program."""

    random: Random
    serial: bool
    insns: list[Insn] = field(default_factory=list)
    call_maps: dict[int, int] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    in_loop: bool = False

    def program(self) -> Verdict:
        """A program with one or two entries, and what a verifier would say of it."""
        self.maps = self.some_maps()
        entries = [Entry("first", (COMPLETE,), 0)]
        self.entry()
        frames = {0: FRAME}
        if self.random.random() < 0.4:
            entries.append(Entry("second", (START, 5), len(self.insns)))
            frames[len(self.insns)] = FRAME
            self.entry()
        leaf = len(self.insns)
        frames[leaf] = LEAF
        self.leaf()
        for pc in self.calls:
            self.insns[pc] = Insn(0x85, 0, 1, 0, leaf - pc - 1)
        return self.verdict(tuple(entries), frames)

    def verdict(self, entries: tuple[Entry, ...], frames: dict[int, int]) -> Verdict:
        insns = tuple(self.insns)
        functions = tuple(Function(pc, f"f{pc}") for pc in frames)
        program = Program("random", insns, entries, self.maps, functions)
        access, reachable, pc = {}, set(), 0
        while pc < len(insns):
            op = operation(insns[pc])
            assert op is not None
            reachable.add(pc)
            if op.kind in (Kind.LOAD, Kind.LOADSX) and insns[pc].src == 9:
                access[pc] = Access(Region.CONTEXT, offset=insns[pc].off, size=op.size)
            pc += op.slots
        cost = {h: COST for e in entries for h in e.hooks}
        because = "it was drawn so" if self.serial else ""
        slots = frozenset(reachable)
        return Verdict(program, access, self.call_maps, slots, frozenset(), cost, {}, because, 0, 256, frames, True, 0)

    def some_maps(self) -> tuple[Map, ...]:
        r = self.random
        kinds = [MapKind.HASH, MapKind.ARRAY, MapKind.HIST, MapKind.STATS]
        out = []
        for i in range(r.randint(1, 4)):
            kind = r.choice(kinds)
            fixed = {MapKind.HIST: 7840, MapKind.STATS: 32}.get(kind)
            value = fixed or (8 if not self.serial else r.choice((8, 8, 12, 16, 24)))
            key = 4 if kind == MapKind.ARRAY else r.choice((1, 2, 4, 8))
            aggregate = bool(fixed) or r.random() < 0.6
            # Which key a full map refuses depends on the order of lanes, so only serial programs fill theirs.
            out.append(
                Map(
                    f"m{i}",
                    kind,
                    key,
                    value,
                    r.choice((1, 3, 8, 40)) if self.serial or kind == MapKind.ARRAY else r.choice((16, 40)),
                    shared=not self.serial and r.random() < 0.3,
                    aggregate=aggregate,
                )
            )
        out.append(Map(".rodata", MapKind.ARRAY, 4, 24, 1, read_only=True, initial=r.randbytes(24)))
        out.append(Map(".data", MapKind.ARRAY, 4, 16, 1, initial=r.randbytes(16)))
        out.append(Map("fed", MapKind.FEEDBACK, 4, 16, 2))
        return tuple(out)

    # Instructions

    def put(self, op: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> int:
        self.insns.append(Insn(op, dst, src, off, imm))
        return len(self.insns) - 1

    def mov(self, dst: int, src: int) -> None:
        self.put(0xBF, dst, src)

    def wide(self, dst: int, src: int, low: int, high: int = 0) -> None:
        self.put(0x18, dst, src, 0, low)
        self.put(0, imm=high)

    def jump_over(self, at: int) -> None:
        """The jump at slot `at` goes to the next instruction."""
        self.insns[at] = self.insns[at]._replace(off=len(self.insns) - at - 1)

    def number(self) -> int:
        return self.random.choice(NUMBERS)

    def imm(self) -> int:
        return self.random.choice(ODD) if self.random.random() < 0.7 else self.random.randint(-(2**31), 2**31 - 1)

    # Statements

    def entry(self) -> None:
        self.mov(9, 1)
        for k, reg in enumerate(NUMBERS):
            self.put(0x79, reg, 9, 0, 0)
            self.insns[-1] = self.insns[-1]._replace(off=(0, 16, 24)[k])
        for slot in (*SLOTS, *range(VALUE, KEY, 8), KEY, COUNTER):
            self.put(0x7A, 10, 0, slot, self.imm())
        for _ in range(self.random.randint(3, 12)):
            self.statement(3)
        self.put(0xBF, 0, self.number())
        self.put(0x95)

    def leaf(self) -> None:
        """A function of three numbers, with a frame of its own."""
        self.put(0x7B, 10, 1, -8)
        self.put(0x7B, 10, 2, -48)
        for reg in (6, 7, 8, 9):
            self.put(0xB7, reg, 0, 0, self.imm())
        for _ in range(3):
            self.arithmetic(self.random.choice((1, 2, 3)), self.random.choice((1, 2, 3)))
        out = self.put(0x2D, 1, 2)
        self.put(0x0F, 3, 1)
        self.jump_over(out)
        self.put(0x79, 0, 10, -48)
        self.put(0x0F, 0, 3)
        self.put(0x95)

    def statement(self, depth: int) -> None:
        simple = [self.column, self.stack, self.stack_atomic, self.upsert, self.upsert, self.closed, self.emit]
        simple += [self.rodata, self.global_add, self.call, self.feedback, self.time]
        simple += [self.some_arithmetic, self.some_arithmetic]
        if self.serial:
            simple += [self.lookup, self.lookup, self.update, self.update, self.delete, self.global_store]
        if depth and self.random.random() < 0.3:
            self.random.choice((self.branch, self.branch, self.loop))(depth - 1)
        else:
            self.random.choice(simple)()

    def some_arithmetic(self) -> None:
        self.arithmetic(self.number(), self.number())

    def arithmetic(self, dst: int, src: int) -> None:
        r, family = self.random, self.random.choice((4, 7))
        code = r.choice((0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14))
        if code == 8:
            self.put(0x80 | family, dst)
        elif code == 13:
            self.put(r.choice((0xD4, 0xDC, 0xD7)), dst, imm=r.choice((16, 32, 64)))
        elif code == 14:
            self.put(0xB8 | family, dst, src, r.choice((8, 16) if family == 4 else (8, 16, 32)))
        else:
            off = r.choice((0, 1)) if code in (3, 9) else 0
            if r.random() < 0.5:
                self.put(code << 4 | 8 | family, dst, src, off)
            else:
                self.put(code << 4 | family, dst, 0, off, self.imm())

    def column(self) -> None:
        at, size = self.random.choice(COLUMNS)
        narrow = self.random.choice([s for s in (1, 2, 4, 8) if s <= size])
        at += narrow * self.random.randrange(size // narrow)
        sign = 0x80 if narrow < 8 and self.random.random() < 0.3 else 0x60
        self.put(sign | SIZE_CODE[narrow] | 1, self.number(), 9, at)

    def place(self, size: int) -> int:
        return self.random.choice(SLOTS) + size * self.random.randrange(8 // size)

    def stack(self) -> None:
        size = self.random.choice((1, 2, 4, 8))
        at = self.place(size)
        match self.random.randrange(3):
            case 0:
                self.put(0x63 & ~0x18 | SIZE_CODE[size], 10, self.number(), at)
            case 1:
                self.put(0x62 & ~0x18 | SIZE_CODE[size], 10, 0, at, self.imm())
            case 2:
                sign = 0x80 if size < 8 and self.random.random() < 0.3 else 0x60
                self.put(sign | SIZE_CODE[size] | 1, self.number(), 10, at)

    def atomic(self, base: int, at: int, size: int, fetching: bool) -> None:
        op = 0xC3 | SIZE_CODE[size]
        kind = self.random.choice((0x00, 0x40, 0x50, 0xA0))
        if fetching and self.random.random() < 0.5:
            kind = self.random.choice((0x01, 0x41, 0x51, 0xA1, 0xE1, 0xF1))
        if kind == 0xF1:
            # r0 is compared with; half the time it is what is there.
            if self.random.random() < 0.5:
                self.put(0x61 | SIZE_CODE[size], 0, base, at)
            else:
                self.mov(0, self.number())
        self.put(op, base, self.number(), at, kind)

    def stack_atomic(self) -> None:
        size = self.random.choice((4, 8))
        self.atomic(10, self.place(size), size, True)

    def time(self) -> None:
        self.put(0x85, imm=HELPER_BY_NAME["ktime_get_ns"].id)
        self.put(0x0F, self.number(), 0)

    def emit(self) -> None:
        over = self.condition()
        self.mov(1, 9)
        self.put(0x85, imm=HELPER_BY_NAME["emit"].id)
        self.jump_over(over)

    def call(self) -> None:
        for arg, reg in zip((1, 2, 3), NUMBERS, strict=True):
            self.mov(arg, reg)
        self.calls.append(self.put(0x85, src=1))
        self.put(0xAF, self.number(), 0)

    def condition(self) -> int:
        """A jump that is to be aimed."""
        code = self.random.choice((1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13))
        family = self.random.choice((5, 6))
        if self.random.random() < 0.5:
            return self.put(code << 4 | 8 | family, self.number(), self.number())
        return self.put(code << 4 | family, self.number(), 0, 0, self.imm())

    def branch(self, depth: int) -> None:
        over = self.condition()
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth)
        if self.random.random() < 0.5:
            end = self.put(self.random.choice((0x05, 0x06)))
            self.jump_over(over)
            self.statement(depth)
            at = len(self.insns) - end - 1
            ja = self.insns[end]
            self.insns[end] = ja._replace(off=at) if ja.op == 0x05 else ja._replace(imm=at)
        else:
            self.jump_over(over)

    def loop(self, depth: int) -> None:
        """At most 8 turns; how many may depend on the event."""
        if self.in_loop:
            return
        self.in_loop = True
        self.mov(1, self.number())
        self.put(0x57, 1, 0, 0, 7)
        self.put(0x7B, 10, 1, COUNTER)
        begin = len(self.insns)
        for _ in range(self.random.randint(1, 2)):
            self.statement(depth)
        self.put(0x79, 1, 10, COUNTER)
        self.put(0x07, 1, 0, 0, -1)
        self.put(0x7B, 10, 1, COUNTER)
        back = self.put(0x65, 1, 0, 0, 0)
        self.insns[back] = self.insns[back]._replace(off=begin - back - 1)
        self.in_loop = False

    # Maps

    def some_map(self, *kinds: MapKind, closed: bool = False) -> int | None:
        own = [i for i, m in enumerate(self.maps) if m.kind in kinds and m.name[0] == "m"]
        fits = [i for i in own if not closed or self.maps[i].aggregate]
        return self.random.choice(fits) if fits else None

    def key(self, map_index: int) -> None:
        """r1 the map, r2 a key: one of few."""
        reg = self.number()
        self.mov(1, reg)
        self.put(0x57, 1, 0, 0, self.random.choice((0, 1, 7, 15)))
        self.put(0x7B, 10, 1, KEY)
        self.mov(2, 10)
        self.put(0x07, 2, 0, 0, KEY)
        self.wide(1, 1, map_index)

    def helper(self, map_index: int, name: str) -> None:
        self.call_maps[self.put(0x85, imm=HELPER_BY_NAME[name].id)] = map_index

    def upsert(self) -> None:
        kind = self.random.choice((MapKind.HASH, MapKind.ARRAY, MapKind.HIST, MapKind.STATS))
        i = self.some_map(kind)
        if i is None or (kind in (MapKind.HASH, MapKind.ARRAY) and self.maps[i].value_size != 8):
            return
        names = [n for n in upserted(kind) if n not in ("map_lookup_elem", "map_update_elem", "map_delete_elem")]
        names = [n for n in names if n != "map_closed"]
        # Different upserts of one map do not commute with each other.
        name = self.random.choice(names) if self.serial else names[i % len(names)]
        self.key(i)
        self.mov(3, self.number())
        self.helper(i, name)

    def read_value(self, map_index: int) -> None:
        """What r0 points to, if it does, into a number."""
        null = self.put(0x15, 0, 0, 0, 0)
        size = self.random.choice((1, 2, 4, 8))
        at = size * self.random.randrange(self.maps[map_index].value_size // size)
        self.put(0x61 | SIZE_CODE[size] if size != 4 else 0x61, self.number(), 0, at)
        self.jump_over(null)

    def closed(self) -> None:
        i = self.some_map(MapKind.HASH, MapKind.ARRAY, MapKind.HIST, MapKind.STATS, closed=True)
        if i is None:
            return
        self.key(i)
        self.helper(i, "map_closed")
        self.read_value(i)

    def feedback(self) -> None:
        i = len(self.maps) - 1
        self.key(i)
        self.helper(i, "map_lookup_elem")
        self.read_value(i)

    def rodata(self) -> None:
        self.wide(1, 2, len(self.maps) - 3, 8)
        size = self.random.choice((1, 2, 4, 8))
        self.put(0x61 & ~0x18 | SIZE_CODE[size], self.number(), 1, self.random.choice((-8, 0, 8)))

    def global_add(self) -> None:
        # Additions alone: they commute with each other, and not with the rest.
        self.wide(1, 2, len(self.maps) - 2, self.random.choice((0, 8)))
        size = self.random.choice((4, 8))
        if self.serial:
            self.atomic(1, 0, size, True)
        else:
            self.put(0xC3 | SIZE_CODE[size] if size == 8 else 0xC3, 1, self.number(), 0 if size == 8 else 4, 0)

    def global_store(self) -> None:
        self.wide(1, 2, len(self.maps) - 2, 0)
        self.put(0x7B, 1, self.number(), 8)

    def lookup(self) -> None:
        i = self.some_map(MapKind.HASH, MapKind.ARRAY)
        if i is None:
            return
        self.key(i)
        self.helper(i, "map_lookup_elem")
        null = self.put(0x15, 0, 0, 0, 0)
        self.mov(1, 0)
        size = self.random.choice((4, 8))
        at = size * self.random.randrange(self.maps[i].value_size // size)
        match self.random.randrange(3):
            case 0:
                self.put(0x61 | SIZE_CODE[size] if size == 8 else 0x61, self.number(), 1, at)
            case 1:
                self.put(0x63 | SIZE_CODE[size] if size == 8 else 0x63, 1, self.number(), at)
            case 2:
                self.atomic(1, at, size, True)
        self.jump_over(null)

    def update(self) -> None:
        i = self.some_map(MapKind.HASH, MapKind.ARRAY)
        if i is None:
            return
        self.put(0x7B, 10, self.number(), VALUE)
        self.put(0x7B, 10, self.number(), VALUE + 8)
        self.key(i)
        self.mov(3, 10)
        self.put(0x07, 3, 0, 0, VALUE)
        self.put(0xB7, 4, 0, 0, self.random.choice((0, 0, 1, 2, 3, -1)))
        self.helper(i, "map_update_elem")
        self.put(0x0F, self.number(), 0)

    def delete(self) -> None:
        i = self.some_map(MapKind.HASH)
        if i is None:
            return
        self.key(i)
        self.helper(i, "map_delete_elem")
        self.put(0x0F, self.number(), 0)


def draw(seed: int, serial: bool) -> Verdict:
    """The program of a seed."""
    return Generator(Random(seed), serial).program()
