"""Which programs a command line asks for: standard monitors by name, objects, images and queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from ..store.errors import Usage
from ..store.tables import HOOKS
from . import attaching
from .programs import standard
from .programs.execution import Limits
from .programs.program import Program
from .programs.sources import query_text, tables_of_segment
from .segment import slots
from .segment.reader import SegmentReader

ALL, NONE = "standard", "none"
Wanted = list[tuple[Program, Limits]]


def load(
    names: Sequence[str],
    constants: Mapping[str, str],
    limits: Limits,
    tables: Mapping[str, pa.Table] | None = None,
) -> Wanted:
    """Programs, and what each may spend: `limits`, and a standard monitor no more than its budget.

    constants: for those that have them. Raises Refused, Usage for a name that is none and a constant that nobody has.
    """
    names = [n for name in names for n in (standard.BY_NAME if name == ALL else [name])]
    out: Wanted = []
    queries = 0
    for name in dict.fromkeys(names):
        monitor = standard.BY_NAME.get(name)
        if monitor is not None:
            own = {k: v for k, v in constants.items() if k in monitor.constants}
            out.append((standard.load(name, own), _least(limits, monitor.limits)))
            continue
        called = None
        if query_text(name) is not None:
            queries += 1
            called = "query" if queries == 1 else f"query_{queries}"
        out.append((attaching.load(name, constants, tables, name=called), limits))
    known = {c for n in names if n in standard.BY_NAME for c in standard.BY_NAME[n].constants}
    left = [c for c in constants if c not in known]
    if left and all(n in standard.BY_NAME for n in names):
        raise Usage(
            "cannot read --set", f"no program has a constant {left[0]}", f"they have {', '.join(sorted(known))}"
        )
    return out


def for_engine(
    segment: SegmentReader, names: Sequence[str], constants: Mapping[str, str], limits: Limits
) -> tuple[Wanted, list[str]]:
    """What a recording of an engine attaches: the standard monitors, unless `none` is among the names, and the others.

    Standard monitors that the engine cannot run, or that run already, are left out, with a note. Raises as `load`.
    """
    asked = [n for n in names if n != NONE]
    if NONE not in names:
        asked = [ALL, *asked]
    there = {r.name for r in attaching.running(segment)}
    exported = segment.layout.exported if slots.can_attach(segment) else 0
    return fitting(load(asked, constants, limits, tables_of_segment(segment)), exported, there)


def fitting(wanted: Wanted, exported: int, there: Collection[str] = ()) -> tuple[Wanted, list[str]]:
    """Without the standard monitors that are `there` already or whose hooks are not all in the mask `exported`.

    A note says which those are.
    """
    out, absent = [], list[str]()
    for program, limits in wanted:
        missing = [h.name for h in HOOKS if program.mask & ~exported & 1 << h.id]
        if program.name in standard.BY_NAME and (missing or program.name in there):
            absent.append(f"{program.name} ({f'no hook {missing[0]}' if missing else 'attached already'})")
        else:
            out.append((program, limits))
    return out, [f"standard monitors left out: {', '.join(absent)}"] if absent else []


def _least(one: Limits, other: Limits) -> Limits:
    return dataclasses.replace(
        one, instructions=min(one.instructions, other.instructions), rows=min(one.rows, other.rows)
    )
