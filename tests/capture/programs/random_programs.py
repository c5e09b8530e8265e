"""Random programs that the verifier accepts: every map, helper and control flow, and events for them.

Programs are assembly. r6 holds the context, r7 to r9 numbers (r9 counts while a loop runs), -8 to -64 on the stack are
eight initialised words, keys and values are built below. At its end each event writes r7 to r9 and two words of its
stack under its sequence number, so that executions that differ in any register differ in a map.

Some programs are SIMT by construction: they only do what commutes, and their maps may be shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from megascope.capture.programs.assembler import assemble_labelled
from megascope.capture.programs.execution import U64, Limits
from megascope.capture.programs.histogram import VALUE_BYTES
from megascope.capture.programs.maps import FEEDBACK_BYTES, STATS_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Function, Program
from megascope.capture.programs.verdict import Verdict
from megascope.capture.programs.verifier import verify
from megascope.store.tables import EVENT_ROW

K = MapKind
MAPS = (
    Map("counts", K.HASH, 4, 8, 6, aggregate=True),
    Map("table", K.HASH, 8, 24, 5),
    Map("array", K.ARRAY, 4, 16, 4),
    Map("sums", K.ARRAY, 4, 8, 5, aggregate=True),
    Map("lat", K.HIST, 4, VALUE_BYTES, 3, aggregate=True),
    Map("stats", K.STATS, 12, STATS_BYTES, 4, aggregate=True),
    Map("cells", K.FEEDBACK, 4, FEEDBACK_BYTES, 3),
    Map("data", K.ARRAY, 4, 24, 1, initial=bytes(range(24))),
    Map("rodata", K.ARRAY, 4, 16, 1, initial=bytes(range(240, 256)), read_only=True),
    Map("odd", K.HASH, 3, 8, 7),
    Map("seen", K.HASH, 8, 40, 512),
    Map("sum_seen", K.HASH, 8, 8, 512),
)
NAMES = {m.name: i for i, m in enumerate(MAPS)}
WORDS = [-8 * i for i in range(1, 9)]
KEY, VALUE = -80, -120
PLAIN = ("add", "sub", "mul", "div", "mod", "sdiv", "smod", "or", "and", "xor", "lsh", "rsh", "arsh", "mov")
JUMPS = ("jeq", "jne", "jgt", "jge", "jlt", "jle", "jsgt", "jsge", "jslt", "jsle", "jset")
LETTERS = {1: "b", 2: "h", 4: "w", 8: "dw"}
EDGES = (0, 1, 2, 7, 31, 32, 63, 64, 127, 128, 255, 256, 32767, 32768, 65535, (1 << 31) - 1)
SIGNED = [s * e for e in EDGES for s in (1, -1)] + [-(1 << 31)]
imm = st.one_of(st.sampled_from(SIGNED), st.integers(-(1 << 31), (1 << 31) - 1))
ATOMICS = ("add", "or", "and", "xor", "fetch add", "fetch or", "fetch and", "fetch xor", "xchg", "cmpxchg")


@dataclass
class Writer:
    """Assembly in the making."""

    lines: list[str] = field(default_factory=list)
    labels: int = 0

    def put(self, *lines: str) -> None:
        self.lines += lines

    def label(self) -> str:
        self.labels += 1
        return f"l{self.labels}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")


Statement = Callable[[Writer], None]


@st.composite
def registers(draw: Any) -> str:
    return f"%r{draw(st.sampled_from((7, 8)))}"


any_register = st.sampled_from(("%r7", "%r8", "%r9"))


@st.composite
def arithmetic(draw: Any) -> Statement:
    dst, src, value = draw(registers()), draw(any_register), draw(imm)
    bits = draw(st.sampled_from(("", "32")))
    kind = draw(st.sampled_from(("reg", "imm", "one", "wide")))
    if kind == "wide":
        number = draw(st.integers(0, (1 << 64) - 1))
        return lambda w: w.put(f"lddw {dst}, {number}")
    if kind == "one":
        ops = ("neg", "neg32", *(f"{s}{n}" for s in ("le", "be", "bswap") for n in (16, 32, 64)))
        name = draw(st.sampled_from(ops))
        return lambda w: w.put(f"{name} {dst}")
    name = draw(st.sampled_from(PLAIN if kind == "imm" else (*PLAIN, "movsx8", "movsx16", "movsx32")))
    if name.startswith("movsx"):
        wide = "64" if name == "movsx32" or not bits else "32"
        return lambda w: w.put(f"{name}{wide} {dst}, {src}")
    if kind == "imm" and name in ("lsh", "rsh", "arsh"):
        value = abs(value) % (32 if bits else 64)
    if kind == "imm" and name in ("div", "mod", "sdiv", "smod") and value == 0:
        value = 3
    return lambda w: w.put(f"{name}{bits} {dst}, {src if kind == 'reg' else value}")


@st.composite
def context(draw: Any) -> Statement:
    column = draw(st.sampled_from(EVENT_ROW.columns))
    size = draw(st.sampled_from([s for s in (1, 2, 4, 8) if 8 * s <= column.bits]))
    offset = draw(st.sampled_from(range(0, column.bits // 8, size)))
    sign = draw(st.sampled_from(("", "s"))) if size < 8 else ""
    dst = draw(registers())
    at = EVENT_ROW.offsets[column.name] + offset
    return lambda w: w.put(f"ldx{sign}{LETTERS[size]} {dst}, [%r6+{at}]")


@st.composite
def on_stack(draw: Any) -> Statement:
    word, size = draw(st.sampled_from(WORDS)), draw(st.sampled_from((1, 2, 4, 8)))
    at = word + draw(st.sampled_from(range(0, 8, size)))
    dst, src, value = draw(registers()), draw(any_register), draw(imm)
    what = draw(st.sampled_from(("load", "sign", "store", "immediate", "atomic", "pointer", "index")))
    if what == "load":
        return lambda w: w.put(f"ldx{LETTERS[size]} {dst}, [%r10{at}]")
    if what == "sign" and size < 8:
        return lambda w: w.put(f"ldxs{LETTERS[size]} {dst}, [%r10{at}]")
    if what == "immediate":
        return lambda w: w.put(f"st{LETTERS[size]} [%r10{at}], {value}")
    if what == "atomic":
        return draw(atomics("%r10", word))  # type: ignore[no-any-return]
    if what == "pointer":

        def through(w: Writer) -> None:
            w.put("mov %r2, %r10")
            w.put(f"add %r2, {word}")
            w.put(f"stxdw [%r2+0], {src}")

        return through
    if what == "index":

        def indexed(w: Writer) -> None:
            w.put(f"mov %r1, {src}", "and %r1, 0x38", "mov %r2, %r10", "add %r2, %r1")
            w.put(f"ldxdw {dst}, [%r2-64]", f"stxdw [%r2-64], {src}")

        return indexed
    return lambda w: w.put(f"stx{LETTERS[size]} [%r10{at}], {src}")


@st.composite
def atomics(draw: Any, base: str, offset: int) -> Statement:
    name, bits, dst, word = draw(st.sampled_from(ATOMICS)), draw(st.sampled_from(("", "32"))), draw(registers()), offset
    if bits:
        word += draw(st.sampled_from((0, 4)))
    guess = draw(any_register)

    def do(w: Writer) -> None:
        if name == "cmpxchg":
            w.put(f"mov %r1, {base}")
            w.put(f"mov %r0, {guess}")
            w.put(f"lock cmpxchg{bits} [%r1{word:+}], {dst}")
            w.put(f"mov {dst}, %r0")
        else:
            w.put(f"lock {name}{bits} [{base}{word:+}], {dst}")

    return do


def write_key(w: Writer, size: int, register: str, mask: int) -> None:
    """A key of a few values, at KEY."""
    w.put(f"mov %r1, {register}")
    if mask:
        w.put(f"and %r1, {mask}")
    if size <= 4:
        w.put(f"stxw [%r10{KEY}], %r1")
    else:
        w.put(f"stxdw [%r10{KEY}], %r1")
        if size > 8:
            w.put(f"stxdw [%r10{KEY + 8}], %r1")


def key_arguments(w: Writer, name: str) -> None:
    w.put("mov %r2, %r10")
    w.put(f"add %r2, {KEY}")
    w.put(f"lddw %r1, map:{name}")


masks = st.sampled_from((1, 3, 7, 7, 15, 0, 0x7FFFFFFF))
UPSERTS = {
    "counts": ("map_add", "map_min", "map_max"),
    "sums": ("map_add", "map_max"),
    "lat": ("hist_add",),
    "stats": ("stats_add",),
    "odd": ("map_add", "map_min", "map_max"),
}


@st.composite
def upserts(draw: Any, commuting: bool = False) -> Statement:
    """commuting: one helper a map, because sums do not commute with minima."""
    name = draw(st.sampled_from(sorted(UPSERTS)))
    helper = draw(st.sampled_from(UPSERTS[name][: 1 if commuting else None]))
    key, mask, value = draw(any_register), draw(masks), draw(any_register)

    def do(w: Writer) -> None:
        write_key(w, MAPS[NAMES[name]].key_size, key, mask)
        key_arguments(w, name)
        w.put(f"mov %r3, {value}")
        w.put(f"call {helper}")

    return do


@st.composite
def updates(draw: Any) -> Statement:
    name, key, mask = draw(st.sampled_from(("table", "array"))), draw(any_register), draw(masks)
    flags, dst, delete = draw(st.sampled_from((0, 0, 1, 2, 3, -1))), draw(registers()), draw(st.booleans())

    def do(w: Writer) -> None:
        write_key(w, MAPS[NAMES[name]].key_size, key, mask)
        if delete and name == "table":
            key_arguments(w, name)
            w.put("call map_delete_elem")
        else:
            for i, register in enumerate(("%r7", "%r8", "%r9")):
                w.put(f"stxdw [%r10{VALUE + 8 * i}], {register}")
            key_arguments(w, name)
            w.put("mov %r3, %r10")
            w.put(f"add %r3, {VALUE}")
            w.put(f"mov %r4, {flags}")
            w.put("call map_update_elem")
        w.put(f"mov {dst}, %r0")

    return do


LOOKUPS = ("table", "array", "cells", "counts", "odd", "data", "rodata")
CLOSED = ("counts", "sums", "lat", "stats")


@st.composite
def lookups(draw: Any, commuting: bool = False) -> Statement:
    closed = draw(st.booleans())
    name = draw(st.sampled_from(CLOSED if closed else ("cells", "rodata") if commuting else LOOKUPS))
    m = MAPS[NAMES[name]]
    key, mask, dst = draw(any_register), draw(masks), draw(registers())
    word = 8 * draw(st.integers(0, min(m.value_size // 8, 80) - 1))
    size = draw(st.sampled_from((1, 2, 4, 8)))
    writable = not (closed or m.read_only or m.kind is K.FEEDBACK)
    write = draw(st.sampled_from(("none", "store", "atomic"))) if writable else "none"
    change = draw(atomics("%r4", word))

    def do(w: Writer) -> None:
        out = w.label()
        write_key(w, m.key_size, key, mask)
        key_arguments(w, name)
        w.put(f"call {'map_closed' if closed else 'map_lookup_elem'}")
        w.put(f"jeq %r0, 0, {out}")
        w.put("mov %r4, %r0")
        w.put(f"ldx{LETTERS[size]} {dst}, [%r4+{word}]")
        if write == "store":
            w.put(f"stx{LETTERS[size]} [%r4+{word}], {key}")
        elif write == "atomic":
            change(w)
        w.place(out)

    return do


@st.composite
def globals_(draw: Any) -> Statement:
    dst, word = draw(registers()), 8 * draw(st.integers(0, 1))
    name, size = draw(st.sampled_from(("data", "rodata"))), draw(st.sampled_from((1, 2, 4, 8)))
    write = name == "data" and draw(st.booleans())

    def do(w: Writer) -> None:
        w.put(f"lddw %r1, value:{name}+{word}")
        if write:
            w.put(f"stx{LETTERS[size]} [%r1+0], {dst}")
        else:
            w.put(f"ldx{LETTERS[size]} {dst}, [%r1+0]")

    return do


@st.composite
def emits(draw: Any) -> Statement:
    dst, time = draw(registers()), draw(st.booleans())

    def do(w: Writer) -> None:
        w.put("mov %r1, %r6")
        w.put("call ktime_get_ns" if time else "call emit")
        if time:
            w.put(f"mov {dst}, %r0")

    return do


@st.composite
def calls(draw: Any) -> Statement:
    dst, a, b = draw(registers()), draw(any_register), draw(any_register)
    at, which = draw(st.sampled_from(WORDS)), draw(st.sampled_from(("mix", "count")))

    def do(w: Writer) -> None:
        w.put(f"mov %r1, {a}")
        w.put(f"mov %r2, {b}")
        w.put("mov %r3, %r10")
        w.put(f"add %r3, {at}")
        w.put(f"call local {which}")
        w.put(f"mov {dst}, %r0")

    return do


@st.composite
def branches(draw: Any, inner: st.SearchStrategy[list[Statement]]) -> Statement:
    jump, bits = draw(st.sampled_from(JUMPS)), draw(st.sampled_from(("", "32")))
    a, b = draw(any_register), draw(any_register)
    value, register = draw(imm), draw(st.booleans())
    yes, no = draw(inner), draw(inner)

    def do(w: Writer) -> None:
        other, end = w.label(), w.label()
        w.put(f"{jump}{bits} {a}, {b if register else value}, {other}")
        for s in yes:
            s(w)
        w.put(f"ja {end}")
        w.place(other)
        for s in no:
            s(w)
        w.place(end)

    return do


@st.composite
def loops(draw: Any, inner: st.SearchStrategy[list[Statement]]) -> Statement:
    times, body = draw(st.integers(1, 6)), draw(inner)

    def do(w: Writer) -> None:
        again = w.label()
        w.put("mov %r9, 0")
        w.place(again)
        for s in body:
            s(w)
        w.put("add %r9, 1")
        w.put(f"jlt %r9, {times}, {again}")

    return do


def statements(simple: st.SearchStrategy[Statement]) -> st.SearchStrategy[list[Statement]]:
    """Bodies of entries: up to a loop with a branch in it."""
    some = st.lists(simple, min_size=1, max_size=4)
    in_loop = st.lists(st.one_of(simple, branches(some)), min_size=1, max_size=3)
    return st.lists(st.one_of(simple, simple, simple, branches(some), loops(in_loop)), min_size=1, max_size=10)


PURE = (arithmetic(), arithmetic(), context(), on_stack(), emits(), calls())
SERIAL = statements(st.one_of(*PURE, upserts(), updates(), lookups(), globals_()))
SIMT = statements(st.one_of(*PURE, upserts(commuting=True), lookups(commuting=True)))

FUNCTIONS = """
mix:
mov %r6, %r1
mov %r7, %r2
stxdw [%r10-8], %r6
stxdw [%r10-16], %r7
xor %r6, %r7
ldxw %r0, [%r10-12]
add %r0, %r6
jsgt32 %r7, 100, mixed
ldxdw %r1, [%r3+0]
add %r0, %r1
stxdw [%r3+0], %r6
mixed:
exit
count:
mov %r6, %r2
and %r1, 3
stxw [%r10-4], %r1
mov %r2, %r10
add %r2, -4
mov %r3, %r6
lddw %r1, map:sums
call map_add
mov %r0, %r6
exit
"""
ENTRIES = {"first": (3, 4), "second": (6, 13)}


def _entry(w: Writer, name: str, body: list[Statement], simt: bool) -> None:
    at = EVENT_ROW.offsets
    w.place(name)
    w.put("mov %r6, %r1", f"ldxdw %r7, [%r6+{at['aux']}]", f"ldxdw %r8, [%r6+{at['task']}]")
    w.put(f"ldxw %r9, [%r6+{at['request']}]")
    for i, word in enumerate(WORDS):
        w.put(f"stdw [%r10{word}], {-i * 77}")
    for s in body:
        s(w)
    (_add_registers if simt else _write_registers)(w)
    w.put("mov %r0, 0", "exit")


def _write_registers(w: Writer) -> None:
    w.put(f"ldxdw %r1, [%r6+{EVENT_ROW.offsets['seq']}]", f"stxdw [%r10{KEY}], %r1")
    for i, register in enumerate(("%r7", "%r8", "%r9")):
        w.put(f"stxdw [%r10{VALUE + 8 * i}], {register}")
    for i, word in enumerate(WORDS[:2]):
        w.put(f"ldxdw %r1, [%r10{word}]", f"stxdw [%r10{VALUE + 24 + 8 * i}], %r1")
    key_arguments(w, "seen")
    w.put("mov %r3, %r10", f"add %r3, {VALUE}", "mov %r4, 0", "call map_update_elem")


def _add_registers(w: Writer) -> None:
    """The same by what commutes: each register under a key of its own."""
    for i, register in enumerate(("%r7", "%r8", "%r9")):
        w.put(f"ldxdw %r1, [%r6+{EVENT_ROW.offsets['seq']}]", "lsh %r1, 2", f"or %r1, {i}", f"stxdw [%r10{KEY}], %r1")
        key_arguments(w, "sum_seen")
        w.put(f"mov %r3, {register}", "call map_add")


@st.composite
def programs(draw: Any, simt: bool | None = None, entries: int = 0) -> Verdict:
    """A verified program. simt: whether it only does what commutes; entries: of every keyed map, 0: few, as in MAPS."""
    simt, w = draw(st.booleans()) if simt is None else simt, Writer()
    for name in ENTRIES:
        _entry(w, name, draw(SIMT if simt else SERIAL), simt)
    made = assemble_labelled("\n".join(w.lines) + FUNCTIONS, NAMES)
    at = tuple(Entry(name, hooks, made.labels[name]) for name, hooks in ENTRIES.items())
    functions = tuple(Function(made.labels[n], n) for n in (*ENTRIES, "mix", "count"))
    shared = draw(st.sets(st.sampled_from(sorted(UPSERTS)))) if simt else set()
    maps = tuple(
        replace(m, shared=m.name in shared, max_entries=m.max_entries if m.indexed else entries or m.max_entries)
        for m in MAPS
    )
    return verify(Program("random", made.insns, at, maps, functions))


@st.composite
def batches(draw: Any, workers: int) -> list[U64]:
    """Batches of rows, of each worker in order of seq; hooks of which some have no entry."""
    out = []
    seq = [0] * workers
    for n in draw(st.lists(st.integers(1, 24), min_size=1, max_size=4)):
        seed = draw(st.integers(0, 1 << 32))
        rng = np.random.default_rng(seed)
        rows = np.zeros(n, EVENT_ROW.dtype)
        for column in EVENT_ROW:
            values = rng.integers(0, (1 << 64) - 1, n, np.uint64, endpoint=True)
            values[rng.random(n) < 0.6] %= np.uint64(8)
            rows[column.name] = values.astype(rows.dtype[column.name])
        rows["worker"] = rng.integers(0, workers, n)
        rows["hook"] = rng.choice((3, 4, 4, 4, 6, 13, 1, 15), n)
        for i in range(n):
            seq[rows["worker"][i]] += 1
            rows["seq"][i] = seq[rows["worker"][i]]
        out.append(rows.view(np.uint64).reshape(n, 8))
    return out


limits = st.one_of(st.just(Limits()), st.builds(Limits, instructions=st.integers(0, 20_000), rows=st.integers(0, 12)))
