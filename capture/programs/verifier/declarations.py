"""What a program declares besides code: entries, functions, maps. Checked first, since all else builds on it."""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

from ..maps import FIXED_VALUE_BYTES, MAX_ENTRIES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Map, MapKind
from ..program import HOOK_IDS, MAX_SLOTS, PICK, Program
from ..verdict import Rejected


def check(program: Program) -> None:
    """Raises Rejected; at slot 0 where no instruction is to blame."""
    n = len(program.insns)
    if not n:
        raise Rejected(program, 0, "it has no instructions")
    if n > MAX_SLOTS:
        raise Rejected(program, MAX_SLOTS, f"it has {n} slots, more than {MAX_SLOTS}")
    if program.sample < 1 or (program.emit_limit is not None and program.emit_limit < 0):
        raise Rejected(program, 0, f"sample is {program.sample} and emit_limit {program.emit_limit}")
    _check_entries(program)
    for f in program.functions:
        if not 0 <= f.pc < n:
            raise Rejected(program, 0, f"function {f.name} begins at slot {f.pc}, which is not there")
    for a, b in pairwise(sorted(program.functions, key=lambda f: f.pc)):
        if a.pc == b.pc:
            raise Rejected(program, a.pc, f"functions {a.name} and {b.name} begin at the same slot")
    names: set[str] = set()
    for m in program.maps:
        _check_map(program, m)
        if m.name in names:
            raise Rejected(program, 0, f"two maps have the name {m.name}")
        names.add(m.name)


def _check_entries(program: Program) -> None:
    if program.kind not in ("observe", "advise"):
        raise Rejected(program, 0, f"it is of kind {program.kind!r}, neither observe nor advise")
    if not program.entries:
        raise Rejected(program, 0, "it has no entry: nothing would run it")
    taken: dict[int, str] = {}
    allowed = HOOK_IDS if program.kind == "observe" else {PICK}
    for e in program.entries:
        if not 0 <= e.pc < len(program.insns):
            raise Rejected(program, 0, f"entry {e.name} begins at slot {e.pc}, which is not there")
        if not e.hooks:
            raise Rejected(program, e.pc, f"entry {e.name} is for no hook")
        for h in e.hooks:
            if h == PICK and program.kind == "observe":
                raise Rejected(program, e.pc, f"entry {e.name} is for pick, where only advise programs run")
            if h in HOOK_IDS and program.kind == "advise":
                raise Rejected(program, e.pc, f"entry {e.name} is for hook {h}, where only observe programs run")
            if h not in allowed:
                raise Rejected(program, e.pc, f"entry {e.name} is for hook {h}, which there is not")
            if h in taken:
                raise Rejected(program, e.pc, f"hook {h} has two entries, {taken[h]} and {e.name}")
            taken[h] = e.name


def _check_map(program: Program, m: Map) -> None:
    def refuse(reason: str) -> NoReturn:
        raise Rejected(program, 0, f"map {m.name} {reason}")

    if m.kind not in tuple(MapKind):
        refuse(f"is of kind {m.kind}, which there is not")
    fixed = FIXED_VALUE_BYTES.get(m.kind)
    if m.indexed and m.key_size != 4:
        refuse(f"has keys of {m.key_size} bytes; an index has 4")
    if not 1 <= m.key_size <= MAX_KEY_BYTES:
        refuse(f"has keys of {m.key_size} bytes; 1 to {MAX_KEY_BYTES} are possible")
    if fixed and m.value_size != fixed:
        refuse(f"has values of {m.value_size} bytes; those of its kind have {fixed}")
    if not fixed and not 1 <= m.value_size <= MAX_VALUE_BYTES:
        refuse(f"has values of {m.value_size} bytes; 1 to {MAX_VALUE_BYTES} are possible")
    if not 1 <= m.max_entries <= MAX_ENTRIES:
        refuse(f"has {m.max_entries} entries; 1 to {MAX_ENTRIES} are possible")
    if m.initial and (m.kind != MapKind.ARRAY or m.max_entries != 1 or len(m.initial) != m.value_size):
        refuse("has initial contents, which only the one value of an array can have, of its size")
    if m.kind in (MapKind.HIST, MapKind.STATS) and not m.aggregate:
        refuse("counts for an epoch: it must be an aggregation")
    if m.kind == MapKind.FEEDBACK and (m.aggregate or m.initial):
        refuse("is written by the host: it can be no aggregation")
    if m.read_only and m.aggregate:
        refuse("is an aggregation that nobody may write")
