"""Random programs that try their luck: mostly well formed, often just inside or just outside of what is safe.

A program is a list of statements in assembler syntax. The statement that matters most computes an offset from data of
the row, guards it with random comparisons, and touches the stack or a value there: right and wrong guards alike, so
that a verifier that believes too much lets a fault through. `rows` makes events of numbers where arithmetic turns.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from megascope.capture.programs.assembler import assemble_labelled
from megascope.capture.programs.execution import U64
from megascope.capture.programs.histogram import VALUE_BYTES
from megascope.capture.programs.maps import FEEDBACK_BYTES, STATS_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.store.tables import EVENT_ROW

MAPS = (
    Map("counts", MapKind.HASH, 4, 8, 4096, aggregate=True),
    Map("lows", MapKind.HASH, 4, 8, 4096, aggregate=True),
    Map("table", MapKind.HASH, 8, 24, 64),
    Map("array", MapKind.ARRAY, 4, 32, 8),
    Map("sums", MapKind.ARRAY, 4, 8, 16, aggregate=True),
    Map("lat", MapKind.HIST, 4, VALUE_BYTES, 4096, aggregate=True),
    Map("stats", MapKind.STATS, 4, STATS_BYTES, 4096, aggregate=True),
    Map("cells", MapKind.FEEDBACK, 4, FEEDBACK_BYTES, 3),
    Map("bss", MapKind.ARRAY, 4, 64, 1),
    Map("rodata", MapKind.ARRAY, 4, 32, 1, initial=bytes(range(224, 256)), read_only=True),
)
NAMES = {m.name: i for i, m in enumerate(MAPS)}
LETTER = {1: "b", 2: "h", 4: "w", 8: "dw"}
EDGES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 56, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0x7FFFFFFF)
ALU = ("add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "mov")
ONE = ("neg", "neg32", "le16", "le32", "le64", "be16", "be32", "be64", "bswap16", "bswap32", "bswap64")
EXTEND = ("movsx864", "movsx1664", "movsx3264", "movsx832", "movsx1632")
JUMPS = ("jeq", "jne", "jgt", "jge", "jlt", "jle", "jsgt", "jsge", "jslt", "jsle", "jset")
ATOMICS = ("add", "or", "and", "xor")
AREA = 64
"""bytes of stack below r10 that every program has written, and touches at random"""


class Writer:
    """One program. commuting: only statements that leave it SIMT, as far as the grammar can tell."""

    def __init__(self, random: Random, commuting: bool) -> None:
        self.random, self.commuting = random, commuting
        self.lines: list[str] = []
        self.labels = 0
        self.depth = 0
        self.functions = False

    def put(self, *lines: str) -> None:
        self.lines += lines

    def label(self) -> str:
        self.labels += 1
        return f"l{self.labels}"

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def number(self) -> int:
        """An immediate."""
        r = self.random
        return r.choice((1, 1, -1)) * r.choice(EDGES) if self.chance(80) else r.randint(-(1 << 31), (1 << 31) - 1)

    def register(self) -> str:
        """One that holds a number; at times one that may hold anything."""
        return f"%r{self.random.choice((7, 8, 8, 9)) if not self.chance(1.5) else self.random.randint(0, 10)}"

    def target(self) -> str:
        return f"%r{self.random.choice((7, 8)) if not self.chance(1) else self.random.randint(0, 9)}"

    # Statements

    def column(self, into: str = "") -> None:
        c = self.random.choice(EVENT_ROW.columns)
        sizes = [s for s in (1, 2, 4, 8) if 8 * s <= c.bits]
        size = self.random.choice((*sizes, sizes[-1], sizes[-1]))
        at = EVENT_ROW.offsets[c.name] + self.random.choice(range(0, c.bits // 8, size))
        if self.chance(0.7):
            at += self.random.randint(-4, 9)
        sign = "s" if size < 8 and self.chance(30) else ""
        self.put(f"ldx{sign}{LETTER[size]} {into or self.target()}, [%r6{at:+}]")

    def arithmetic(self, dst: str = "") -> None:
        r = self.random
        dst, bits = dst or self.target(), r.choice(("", "32"))
        kind = r.random()
        if kind < 0.08:
            self.put(f"{r.choice(ONE)} {dst}")
        elif kind < 0.18:
            self.put(f"{r.choice(EXTEND)} {dst}, {self.register()}")
        elif kind < 0.22:
            self.put(f"lddw {dst}, {r.choice((r.getrandbits(64), 1 << 63, (1 << 32) - 1, 1 << 32, (1 << 64) - 1))}")
        elif kind < 0.6:
            name = r.choice((*ALU, "and", "rsh"))
            value = r.randint(0, 31 if bits else 63) if name in ("lsh", "rsh", "arsh") else self.number()
            self.put(f"{name}{bits} {dst}, {value}")
        else:
            self.put(f"{r.choice(ALU)}{bits} {dst}, {self.register()}")

    def guard(self, register: str, out: str) -> None:
        """A comparison that may bound the register, in any of the ways there are."""
        r = self.random
        bits = r.choice(("", "", "32"))
        limit = r.choice((0, 1, 3, 7, 8, 15, 24, 31, 32, 56, 60, 63, 64, 65, -1, -8, -64))
        other = self.register() if self.chance(12) else str(limit)
        choice = r.random()
        if choice < 0.55:
            self.put(f"{r.choice(('jgt', 'jge', 'jgt', 'jsgt', 'jsge'))}{bits} {register}, {other}, {out}")
        elif choice < 0.8:
            self.put(f"{r.choice(('jslt', 'jsle'))}{bits} {register}, {r.choice((0, 0, 0, -1, -8, 4))}, {out}")
        elif choice < 0.9:
            self.put(f"jset{bits} {register}, {r.choice((-64, -32, -8, 1, 7, ~63, ~31, ~63 - (1 << 30)))}, {out}")
        else:
            self.put(f"{r.choice(JUMPS)}{bits} {register}, {other}, {out}")

    def one_of_two(self) -> None:
        """r2: a constant or another, perhaps through the stack or a third register."""
        r, skip = self.random, self.label()
        few = (0, 8, 24, 31, 32, 40, 56, 63, 63, 64, 70, -8)
        into = r.choice(("%r2", "%r2", "%r5"))
        self.put(f"mov {into}, {r.choice(few)}", f"{r.choice(JUMPS)} {self.register()}, {self.number()}, {skip}")
        self.put(f"mov {into}, {r.choice(few)}", f"{skip}:")
        if self.chance(30):
            self.put(f"stxdw [%r10-8], {into}", "ldxdw %r2, [%r10-8]")
        elif into != "%r2":
            self.put(f"mov %r2, {into}")

    def offset(self, out: str) -> None:
        """r2: a number that random arithmetic and guards may have bounded."""
        r = self.random
        if self.chance(25):
            self.one_of_two()
        elif self.chance(60):
            self.column("%r2")
        else:
            self.put(f"mov{r.choice(('', '32'))} %r2, {self.register()}")
        for _ in range(r.choice((0, 0, 1, 1, 2))):
            self.arithmetic("%r2")
        if self.chance(50):
            self.put(f"{r.choice(('and', 'and', 'and32', 'mod', 'mod32'))} %r2, {r.choice((7, 15, 31, 31, 56, 63))}")
        elif self.chance(25):
            self.put(f"rsh{r.choice((' %r2, 58', ' %r2, 59', '32 %r2, 26', '32 %r2, 27', ' %r2, 60'))}")
        copied = self.chance(25)
        if copied:
            self.put(f"mov{r.choice(('', '32'))} %r3, %r2")
        for _ in range(r.choice((0, 1, 1, 2, 2, 3))):
            self.guard("%r3" if copied and self.chance(60) else "%r2", out)
        if self.chance(15):
            self.put("stxdw [%r10-8], %r2", "ldxdw %r2, [%r10-8]")
        if self.chance(10):
            self.put("stxw [%r10-16], %r2", "ldxw %r2, [%r10-16]")
        if self.chance(20):
            self.arithmetic("%r2")
        if self.chance(45):
            self.put(f"{r.choice(('and', 'and', 'and32'))} %r2, {r.choice((7, 24, 31, 56, 63, ~7, ~3))}")

    def gamble(self) -> None:
        """Touch memory at an offset that may be inside."""
        r, out = self.random, self.label()
        self.offset(out)
        area, size = AREA, r.choice((1, 1, 1, 2, 4, 8))
        if self.chance(60) or (self.commuting and not self.chance(3)):
            self.put("mov %r3, %r10", f"add %r3, -{AREA}")
        else:
            name, area = r.choice((("bss", 64), ("rodata", 32)))
            self.put(f"lddw %r3, value:{name}")
        if size > 1 and self.chance(85):
            self.put(f"and %r2, {-size}")
        self.put(f"{'sub' if self.chance(8) else 'add'} %r3, %r2")
        at = r.choice((0, 0, 0, 0, -1, 1, -8, 8, area - size, 32 - size)) & -size
        kind = r.random()
        if kind < 0.6:
            self.put(f"ldx{'s' if size < 8 and self.chance(20) else ''}{LETTER[size]} {self.target()}, [%r3{at:+}]")
        elif kind < 0.9:
            self.put(f"stx{LETTER[size]} [%r3{at:+}], {self.register()}")
        elif size >= 4:
            fetch = "fetch " if self.chance(40) else ""
            self.put(f"lock {fetch}{r.choice(ATOMICS)}{'32' if size == 4 else ''} [%r3{at:+}], {self.register()}")
        self.put(f"{out}:")

    def stack(self) -> None:
        r, size = self.random, self.random.choice((1, 2, 4, 8))
        at = -r.choice(range(size, AREA + 1, size))
        if self.chance(1):
            at -= r.choice((1, 60, 200))
        if self.chance(50):
            self.put(f"stx{LETTER[size]} [%r10{at}], {self.register()}")
        else:
            self.put(f"ldx{'s' if size < 8 and self.chance(30) else ''}{LETTER[size]} {self.target()}, [%r10{at}]")

    def spill(self) -> None:
        """A pointer to the stack and back; sometimes something happens to it there."""
        self.put("stxdw [%r10-72], %r6")
        if self.chance(4):
            self.put(self.random.choice(("stb [%r10-70], 1", "ldxw %r7, [%r10-72]", "lock add [%r10-72], %r7")))
        self.put("ldxdw %r6, [%r10-72]")

    def key(self, name: str) -> None:
        size = MAPS[NAMES[name]].key_size
        self.put(f"mov %r4, {self.register()}", f"and %r4, {self.random.choice((1, 3, 7, 15))}")
        self.put(f"stx{LETTER[size]} [%r10-80], %r4")
        self.put("mov %r2, %r10", f"add %r2, {-80 if not self.chance(1) else self.random.randint(-96, 8)}")
        self.put(f"lddw %r1, map:{name}")

    def upsert(self) -> None:
        choices = [
            ("counts", "map_add"),
            ("lows", "map_min"),
            ("sums", "map_add"),
            ("lat", "hist_add"),
            ("stats", "stats_add"),
        ]
        if self.chance(3):
            choices = [("counts", "map_max"), ("sums", "map_max"), ("lat", "map_add"), ("table", "map_add")]
        name, helper = self.random.choice(choices)
        self.key(name)
        self.put(f"mov %r3, {self.register()}", f"call {helper}")

    def lookup(self) -> None:
        """A value, tested for null or not, read, written or counted up."""
        r = self.random
        out = self.label()
        closed = self.chance(25)
        name = r.choice(("counts", "sums", "lat", "stats")) if closed else r.choice(("array", "cells"))
        if not closed and not self.commuting:
            name = r.choice(("table", "array", "cells", "counts"))
        self.key(name)
        self.put(f"call {'map_closed' if closed else 'map_lookup_elem'}")
        if self.chance(20):
            self.put("mov %r1, %r0")
        if not self.chance(2):
            self.put(f"jeq %r{'1' if self.lines[-1] == 'mov %r1, %r0' and self.chance(50) else '0'}, 0, {out}")
        value = MAPS[NAMES[name]].value_size
        if self.chance(25):
            self.put(f"mov %r2, {self.register()}", f"and %r2, {r.choice((7, 8, 15, 24))}", "add %r0, %r2")
        size = r.choice((4, 8)) if self.commuting else r.choice((1, 2, 4, 8))
        at = r.choice(range(0, value, size)) if not self.chance(3) else r.randint(-8, value + 8)
        if name == "array" and (self.commuting or self.chance(40)):
            size = r.choice((4, 8)) if self.chance(10) else 8
            at = r.choice((0, 8, 16, 24))
            name = "add" if at < 16 or self.chance(10) else "or"
            self.put(f"lock {name}{'32' if size == 4 else ''} [%r0{at:+}], {self.register()}")
        elif self.chance(60) or closed or name == "cells":
            self.put(f"ldx{LETTER[size]} {self.target()}, [%r0{at:+}]")
        else:
            self.put(f"stx{LETTER[size]} [%r0{at:+}], {self.register()}")
        self.put(f"{out}:")

    def write(self) -> None:
        """Update or delete, and perhaps a value that was looked up before."""
        kept = self.chance(20)
        if kept:
            self.key("table")
            self.put("call map_lookup_elem", "mov %r9, %r0")
        self.key("table")
        if self.chance(50):
            self.put("call map_delete_elem")
            kept = kept and self.chance(8)
        else:
            self.put(
                "mov %r3, %r10",
                "add %r3, -24",
                f"mov %r4, {self.random.choice((0, 0, 1, 2, 9))}",
                "call map_update_elem",
            )
        if kept:
            out = self.label()
            self.put(f"jeq %r9, 0, {out}", "ldxdw %r7, [%r9+8]", f"{out}:")
        self.put("mov %r9, 3")

    def other(self) -> None:
        if self.chance(50):
            self.put("mov %r1, %r6", "call emit")
        else:
            self.put("call ktime_get_ns", f"mov {self.target()}, %r0")

    def branch(self) -> None:
        out, other = self.label(), self.label()
        bits = self.random.choice(("", "32"))
        right = self.register() if self.chance(30) else str(self.number())
        self.put(f"{self.random.choice(JUMPS)}{bits} {self.register()}, {right}, {out}")
        self.block()
        if self.chance(40):
            self.put(f"ja {other}", f"{out}:")
            self.block()
            self.put(f"{other}:")
        else:
            self.put(f"{out}:")

    def loop(self) -> None:
        head, out = self.label(), self.label()
        self.put(f"mov %r9, {self.random.choice((0, 0, 1))}", f"{head}:")
        self.block()
        if self.chance(15):
            self.put(f"{self.random.choice(JUMPS)} %r8, {self.number()}, {out}")
        limit = self.random.randint(1, 9)
        self.put(
            "add %r9, 1",
            f"{self.random.choice(('jlt', 'jle', 'jne', 'jslt', 'jlt32'))} %r9, {limit}, {head}",
            f"{out}:",
        )

    def local(self) -> None:
        """A call of the program's own function, which gets a number and a pointer to this frame."""
        self.functions = True
        self.put(f"mov %r1, {self.register()}", "mov %r2, %r10", f"add %r2, -{self.random.choice((64, 64, 48, 8, 0))}")
        self.put(f"mov %r3, {self.register()}", "call local function", f"mov {self.target()}, %r0")

    def block(self) -> None:
        self.depth += 1
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self.statement()
        self.depth -= 1

    def statement(self) -> None:
        some: list[Callable[[], None]] = [self.column, self.arithmetic, self.arithmetic, self.gamble, self.gamble]
        some += [self.stack, self.upsert, self.lookup, self.other]
        if not self.commuting or self.chance(1):
            some += [self.write, self.spill]
        if self.depth < 2:
            some += [self.branch, self.branch, self.loop]
        if not self.depth and self.chance(40):
            some += [self.local]
        self.random.choice(some)()

    def program(self) -> Program:
        r = self.random
        self.put("mov %r6, %r1", "ldxdw %r7, [%r6+16]", "ldxw %r8, [%r6+32]", "mov %r9, 3")
        for word in range(8, AREA + 1, 8):
            if not self.chance(0.7):
                self.put(f"stxdw [%r10-{word}], {r.choice(('%r7', '%r8', '%r9'))}")
        for _ in range(r.randint(1, 7)):
            self.statement()
        self.put("mov %r0, 0" if not self.chance(10) else "mov %r0, %r7", "exit")
        if self.functions:
            self.put(
                "function:", "mov %r7, %r3", "mov %r0, 0", "and %r1, 63", f"jgt %r1, {r.choice((7, 40, 63))}, over"
            )
            self.put("add %r2, %r1", f"ldxb %r0, [%r2{r.choice((0, 0, 1, -1)):+}]", "over:", "stxdw [%r10-16], %r7")
            self.put("ldxdw %r8, [%r10-16]", "add %r0, %r8", "exit")
        code = assemble_labelled("\n".join(self.lines), NAMES)
        return Program("random", code.insns, (Entry("at", (4, 6), 0),), MAPS)


def random_program(seed: int, commuting: bool = False) -> tuple[Program, str]:
    """A program and its text."""
    writer = Writer(Random(seed), commuting)
    program = writer.program()
    return program, "\n".join(writer.lines)


def rows(seed: int, n: int, workers: int = 1) -> U64:
    """[n, 8] words: events of hooks 4 and 6 with numbers of every size in every column."""
    random = Random(seed)
    out = np.zeros(n, EVENT_ROW.dtype)
    for i in range(n):
        for c in EVENT_ROW:
            edge = random.choice((0, 1, 1 << c.bits - 1, (1 << c.bits) - 1, *EDGES)) + random.choice((0, 0, 1, -1))
            number = edge if random.random() < 0.6 else random.getrandbits(random.randint(1, c.bits))
            out[c.name][i] = number & (1 << c.bits) - 1
        out["hook"][i], out["worker"][i] = random.choice((4, 6)), random.randrange(workers)
    return out.view(np.uint64).reshape(n, 8)
