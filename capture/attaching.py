"""Attaching programs to a live engine, and taking them away: what the verbs, the screen and a capture do alike."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path

import pyarrow as pa

from ..store.errors import MegascopeError, Refused, Usage
from ..store.tables import HOOKS
from .programs import image, standard
from .programs.execution import Limits
from .programs.program import Program
from .programs.verdict import Verdict
from .segment import slots
from .segment.mailbox import NAP_S, Mailbox
from .segment.program_words import Code, SlotState
from .segment.reader import SegmentReader

Idle = Callable[[], object]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _nap() -> None:
    time.sleep(NAP_S)


@dataclass(frozen=True)
class Attached:
    """A program that runs. took_s: from the request to the last monitor's acknowledgement."""

    program: int
    slot: int
    name: str
    took_s: float


@dataclass(frozen=True)
class Running:
    """A program of an engine as `programs` lists it. `program` None: its image cannot be read."""

    line: slots.Line
    name: str
    program: Program | None


def load(
    what: str,
    constants: Mapping[str, str],
    tables: Mapping[str, pa.Table] | None = None,
    *,
    name: str | None = None,
    query: bool = False,
) -> Program:
    """A program from an object or image (a file of that name), or from a query (its text, or a file with it).

    tables: side tables of the target, of which queries take names. name: another for it. Raises Refused, or Usage for
    what is neither and for a name that no table could have.
    """
    if name is not None and not _NAME.fullmatch(name):
        why = f"{name!r} is no name for a program"
        raise Usage(f"cannot load {what}", why, "letters, digits and _ (its maps become tables), at most 64")
    from .programs.sources import query_text

    text = query_text(what, query=query)
    if text is None:
        from .programs.loader import load as load_object

        return load_object(Path(what), constants, name)
    from .programs.language import compile as compile_query

    compiled = compile_query(text, tables, constants, name or "query")
    return replace_fields(compiled.program, feedback=compiled.feedback)


def verify(program: Program) -> Verdict:
    """What the verifier says. Raises Rejected."""
    from .programs.verifier import verify as verified

    return verified(program)


def attach(
    segment: SegmentReader, program: Program, limits: Limits | None = None, *, replace: bool = False, idle: Idle = _nap
) -> Attached:
    """Verify a program and attach it; replace: in the place of the one of its name.

    Raises Rejected, Refused for what the engine cannot run or has no room for, Usage for a name that is reserved,
    MegascopeError when it does not answer.
    """
    what = f"cannot attach {program.name}"
    standard.check_name(program)
    missing = [h.name for h in HOOKS if program.mask & ~(segment.layout.exported | 1 << HOOKS[-1].id) & 1 << h.id]
    if missing:
        exported = ", ".join(h.name for h in HOOKS if segment.layout.exported >> h.id & 1)
        raise Refused(what, f"engine {segment.layout.name} does not export the hook {missing[0]}", f"it has {exported}")
    verify(program)
    packed = image.pack(program)
    with Mailbox(segment, what, idle=idle) as box:
        there = {r.name: r.line.slot for r in running(segment)}
        slot = there.get(program.name)
        if slot is not None and not replace:
            raise Refused(what, "a program of that name is attached", "detach it, or say --replace")
        if slot is None and replace:
            raise Refused(what, "no program of that name is attached", _close(program.name, there))
        if slot is None:
            slot = box.free_slot()
        if slot is None:
            why = f"all {segment.layout.program_slots} slots are taken"
            raise Refused(what, why, "detach another program")
        begun = time.monotonic()
        said = box.attach(slot, packed, limits or Limits(), replace=replace)
        took = time.monotonic() - begun
    _check(what, said)
    return Attached(said.program, slot, program.name, took)


def detach(segment: SegmentReader, name: str, *, idle: Idle = _nap) -> Attached:
    """Take the program of that name away; what its maps hold is exported. Raises as `attach`."""
    what = f"cannot detach {name}"
    with Mailbox(segment, what, idle=idle) as box:
        there = {r.name: r.line.slot for r in running(segment)}
        if name not in there:
            raise Refused(what, "no program of that name is attached", _close(name, there))
        begun = time.monotonic()
        said = box.detach(there[name])
        took = time.monotonic() - begun
    _check(what, said)
    return Attached(said.program, there[name], name, took)


def running(segment: SegmentReader) -> list[Running]:
    """The programs that an engine runs, in the order in which they came."""
    out = []
    for line in sorted(slots.lines(segment), key=lambda line: line.change):
        if line.state == SlotState.ATTACHED:
            try:
                program = slots.program_of(segment, line)
            except MegascopeError:
                out.append(Running(line, f"program_{line.program}", None))
            else:
                out.append(Running(line, program.name, program))
    return out


def _check(what: str, said: slots.Answer) -> None:
    if said.code == Code.DONE:
        return
    why = said.text or said.code.name.lower()
    todo = {
        Code.ARENA: "detach another program, or declare smaller maps",
        Code.SPENT: "restart the engine",
        Code.DAMAGED: "try again",
        Code.SLOT: "try again: somebody else attached or detached meanwhile",
    }.get(said.code, "")
    raise Refused(what, why, todo)


def _close(name: str, there: Mapping[str, int]) -> str:
    close = difflib.get_close_matches(name, there, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"attached are {', '.join(there)}" if there else "none is attached"
