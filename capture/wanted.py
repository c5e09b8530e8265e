"""Which programs a command line asks for: standard monitors by name, objects, images and queries."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..store.errors import Refused, Usage
from ..store.tables import HOOKS
from . import attaching
from .programs import standard
from .programs.execution import Limits
from .programs.program import Program
from .programs.sources import query_of, query_text, tables_of_segment
from .segment import slots
from .segment.reader import SegmentReader
from .triggers import check

if TYPE_CHECKING:
    from .programs.language import Query

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
    names = list(dict.fromkeys(n for name in names for n in (standard.BY_NAME if name == ALL else [name])))
    known = {name: _constants_of(name) for name in names}
    _check(constants, {c for of in known.values() for c in of})
    out: Wanted = []
    queries = 0
    for name in names:
        own = {k: v for k, v in constants.items() if _variable(k) in known[name]}
        monitor = standard.BY_NAME.get(name)
        if monitor is not None:
            out.append((standard.load(name, own), _least(limits, monitor.limits)))
            continue
        called = None
        if query_text(name) is not None:
            queries += 1
            called = "query" if queries == 1 else f"query_{queries}"
        program = attaching.load(name, own, tables, name=called)
        standard.check_name(program)
        out.append((program, limits))
    return out


def queries(
    wanted: Wanted, constants: Mapping[str, str], tables: Mapping[str, pa.Table] | None = None
) -> dict[str, Query]:
    """Those of loaded programs that are queries, by name. constants, tables: as they were loaded with."""
    from .programs.language import constants_of

    out = {}
    for program, _ in wanted:
        if standard.is_one(program):
            continue
        known = constants_of(program.source)
        query = query_of(program, tables, {k: v for k, v in constants.items() if k in known})
        if query is not None:
            out[program.name] = query
    return out


def _constants_of(name: str) -> list[str]:
    """What can be set in the program that a command line calls so. Raises Usage for a name that is none."""
    from .programs.language import constants_of as of_query
    from .programs.loader import constants_of as of_object

    if name in standard.BY_NAME:
        return list(standard.BY_NAME[name].constants)
    try:
        text = query_text(name)
    except Usage as e:
        close = difflib.get_close_matches(name, standard.BY_NAME, 1)
        if not close:
            raise
        todo = f"did you mean {close[0]}?"
        raise Usage(e.what, e.why, todo) from None
    return of_query(text) if text is not None else of_object(Path(name))


def _variable(constant: str) -> str:
    """limits.low, weight[2] → limits, weight"""
    return re.split(r"[.\[]", constant, maxsplit=1)[0]


def _check(constants: Mapping[str, str], known: Collection[str]) -> None:
    for name in constants:
        if _variable(name) not in known:
            close = difflib.get_close_matches(_variable(name), known, 1)
            have = f"they have {', '.join(sorted(known))}" if known else "they have none"
            todo = f"did you mean {close[0]}?" if close else have
            raise Usage("cannot read --set", f"no program has a constant {name}", todo)


def for_engine(
    segment: SegmentReader, names: Sequence[str], constants: Mapping[str, str], limits: Limits
) -> tuple[Wanted, dict[str, Query], list[str]]:
    """What a recording of an engine attaches: the standard monitors, unless `none` is among the names, and the others.

    Beside it, those of them that are queries, by name. Standard monitors that the engine cannot run, or that run
    already, are left out, with a note. Raises as `load`.
    """
    asked = [n for n in names if n != NONE]
    gone = not segment.status().live
    if gone and not names:
        # What it has left in its segment is recorded all the same.
        return [], {}, [f"no program is attached: the engine has {segment.status().text}"]
    if NONE not in names:
        asked = [ALL, *asked]
    running = attaching.running(segment)
    there = {r.name for r in running}
    exported = segment.layout.exported if slots.can_attach(segment) else 0
    # Requests come and go: the query is compiled twice, from the same tables.
    tables = tables_of_segment(segment)
    fit, notes = fitting(load(asked, constants, limits, tables), exported, there)
    for program, _ in fit:
        if program.name in there:
            todo = f"give it another name, or first: megascope detach {program.name}"
            raise Refused(f"cannot attach {program.name}", "a program of that name is attached", todo)
    if ALL in asked:
        # Of an engine that an earlier version has attached to.
        others = [
            r.name for r in running if r.name in standard.RESERVED and not (r.program and standard.is_one(r.program))
        ]
        notes += [
            f"what runs as {name} is not this standard monitor; detach it, to have that recorded" for name in others
        ]
    return fit, queries(fit, constants, tables), notes


def triggers(segment: SegmentReader, texts: Sequence[str], limits: Limits) -> Wanted:
    """The programs of --on, called trigger, trigger_2 and so on, as far as no program is called so already.

    --set does not reach them. Raises Usage for one that never emits, and as `load`.
    """
    tables, out = tables_of_segment(segment), Wanted()
    there = {r.name for r in attaching.running(segment)} if texts else set()
    free = (n for i in itertools.count(1) if (n := "trigger" if i == 1 else f"trigger_{i}") not in there)
    for text in texts:
        program = attaching.load(text, {}, tables, name=next(free))
        check(program)
        out.append((program, limits))
    return out


def fitting(wanted: Wanted, exported: int, there: Collection[str] = ()) -> tuple[Wanted, list[str]]:
    """Without the standard monitors that are `there` already or whose hooks are not all in the mask `exported`.

    A note says which those are.
    """
    out, absent = [], list[str]()
    for program, limits in wanted:
        missing = [h.name for h in HOOKS if program.mask & ~exported & 1 << h.id]
        if standard.is_one(program) and (missing or program.name in there):
            absent.append(f"{program.name} ({f'no hook {missing[0]}' if missing else 'attached already'})")
        else:
            out.append((program, limits))
    return out, [f"standard monitors left out: {', '.join(absent)}"] if absent else []


def _least(one: Limits, other: Limits) -> Limits:
    return dataclasses.replace(
        one, instructions=min(one.instructions, other.instructions), rows=min(one.rows, other.rows)
    )
