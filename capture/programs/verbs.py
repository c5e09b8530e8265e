"""The verb `program`: look at a program before it is attached."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ...store.errors import Exit, Usage
from ...store.tables import HOOKS
from ..live_line import short
from .compile_verb import Compile, add_query
from .isa import Kind, operation
from .maps import FIXED_VALUE_BYTES, Map, TypeLayout
from .program import PICK, STACK_BYTES, Program
from .verdict import Rejected, Verdict

HOOK_NAMES = {h.id: h.name for h in HOOKS} | {PICK: "pick"}


class Action(Protocol):
    """One thing that `program` does; its docstring is its help."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Check:
    """Verify a program: accepted or rejected and why, SIMT or serial and why, costs, stack, maps.

    Exits with 3 if the program is rejected.
    """

    name = "check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_program(parser)

    def run(self, args: argparse.Namespace) -> int:
        program = load(args)
        verdict = print_verdict(program)
        return Exit.REFUSED if isinstance(verdict, Rejected) else Exit.DONE


class Show:
    """Show a program: its verdict, maps, the helpers it calls, and its instructions under their source lines.

    Exits with 3 if the program is rejected.
    """

    name = "show"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_program(parser)

    def run(self, args: argparse.Namespace) -> int:
        from .disassembler import disassemble

        program = load(args)
        verdict = print_verdict(program)
        _print(_helpers(program))
        print()
        for line in disassemble(_one_line_once(program), source=True, numbers=True):
            print(line)
        return Exit.REFUSED if isinstance(verdict, Rejected) else Exit.DONE


class Include:
    """Print the folder of megascope.bpf.h: clang -target bpf -g -O2 -I "$(megascope program include)" -c P.bpf.c"""

    name = "include"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, _: argparse.Namespace) -> int:
        print(Path(__file__).resolve().parent.parent / "device")
        return Exit.DONE


ACTIONS: tuple[type[Action], ...] = (Check, Show, Compile, Include)


class ProgramVerb:
    """Verify, show and compile programs before they are attached.

    P is an object of clang's (-target bpf -g), a program image, or a query (a file if there is one of that name).
    """

    name = "program"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        choices = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for kind in ACTIONS:
            text = kind.__doc__ or ""
            sub = choices.add_parser(kind.name, help=text.splitlines()[0].rstrip("."), description=text)
            kind().add_arguments(sub)
            sub.set_defaults(act=kind().run)

    def run(self, args: argparse.Namespace) -> int:
        code: int = args.act(args)
        return code


def add_constants(parser: argparse.ArgumentParser) -> None:
    """The option --set, for every verb that loads a program."""
    text = "set a volatile const of the program: a number (with ns, us, ms or s), true, false, an enumerator, or text"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="constants", help=text)


def constants(args: argparse.Namespace) -> dict[str, str]:
    """What --set says. Raises Usage for one that is no NAME=VALUE, and for a name that is set twice."""
    out: dict[str, str] = {}
    for text in args.constants:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage("cannot read --set", f"{text!r} is not NAME=VALUE", "say --set threshold_ns=20us")
        if name in out:
            raise Usage("cannot read --set", f"{name} is set twice", "set it once")
        out[name] = value
    return out


def add_program(parser: argparse.ArgumentParser) -> None:
    """What names a program: an object, an image, or a query and where its names come from."""
    parser.add_argument("program", metavar="P", help="an object of clang's, a program image, or a query")
    add_query(parser)
    add_constants(parser)


def load(args: argparse.Namespace) -> Program:
    """The program that `add_program`'s arguments name. Raises as `attaching.load`."""
    from .. import attaching

    if args.target is None:
        return attaching.load(args.program, constants(args), query=args.query)
    from .sources import tables_of

    return attaching.load(args.program, constants(args), tables_of(args.target), query=args.query)


def print_verdict(program: Program) -> Verdict | Rejected:
    """Verify a program, and print what is said of it."""
    verdict = _verify(program)
    _print(_verdict(program, verdict))
    return verdict


def _verify(program: Program) -> Verdict | Rejected:
    from .verifier import verify

    try:
        return verify(program)
    except Rejected as e:
        return e


def _print(rows: Iterator[tuple[str, str]]) -> None:
    for head, text in rows:
        print(f"{head:<10}{text}")


def _verdict(program: Program, verdict: Verdict | Rejected) -> Iterator[tuple[str, str]]:
    """(heading, one line) of what the verifier says, then of each map."""
    if isinstance(verdict, Rejected):
        yield "rejected", str(verdict)
    else:
        size = f"{len(program.insns)} slots, {len(verdict.reachable)} reachable"
        yield "accepted", f"program {program.name}: {program.kind}, {size}"
        yield (
            "runs",
            "simt" if verdict.simt else f"serial: {verdict.serial_because}{_where(program, verdict.serial_pc)}",
        )
        how = "in lockstep" if verdict.simt else "one after another"
        for entry in program.entries:
            for hook in entry.hooks:
                each, batch = verdict.cost[hook], verdict.batch_cost[hook]
                text = f"{entry.name}: at most {each:,} instructions an event, {batch:,} for 32 {how}"
                yield "cost", f"{HOOK_NAMES[hook]} → {text}"
        yield "stack", f"{verdict.stack} of {STACK_BYTES} bytes"
        yield "emits", "yes" if verdict.emits else "no"
        yield "reads", ", ".join(sorted(verdict.columns)) or "nothing of the event"
    for m in program.maps:
        yield "map", _map(m)


def _where(program: Program, pc: int) -> str:
    line = program.line(pc) if pc >= 0 else None
    place = f"{line.file}:{line.line}: " if line and line.line else ""
    return f" ({place}{line.text.strip()})" if line and (line.line or line.text) else ""


def _map(m: Map) -> str:
    if m.initial:
        access = "constants" if m.read_only else "variables"
        return f"{m.name}: {access}, {m.value_size} bytes ({_names(m.value) if m.value else 'not described'})"
    value = "" if m.kind in FIXED_VALUE_BYTES else f" → {m.value_size} bytes{_leaves(m.value)}"
    owner = "shared" if m.shared else "per worker"
    life = ", each epoch anew" if m.aggregate else ", read-only" if m.read_only else ""
    room = short(m.max_entries * (m.key_size + m.value_size), "B")
    key = "" if m.indexed else f" by {m.key_size} bytes{_leaves(m.key)}"
    entries = f"{m.max_entries:,} entr{'y' if m.max_entries == 1 else 'ies'}"
    return f"{m.name}: {m.kind.name.lower()}{key}{value}, {entries}, {room} {owner}{life}"


def _leaves(layout: TypeLayout | None) -> str:
    """' (struct place: task_class, worker)'; a scalar has its type's name alone."""
    parts = [p for p in (layout.name, _names(layout)) if p] if layout else []
    return f" ({': '.join(parts)})" if parts else ""


def _names(layout: TypeLayout, most: int = 8) -> str:
    names = [x.name for x in layout.members if x.name]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _helpers(program: Program) -> Iterator[tuple[str, str]]:
    """Each helper that the code calls, and what it costs and does."""
    from .helpers import HELPER_BY_ID

    called = set()
    for insn in program.insns:
        op = operation(insn)
        if op and op.kind == Kind.CALL and not op.register:
            called.add(insn.imm)
    for number in sorted(called & HELPER_BY_ID.keys()):
        h = HELPER_BY_ID[number]
        yield "helper", f"{h.name}: counts as {h.cost} instructions; {h.meaning}"


def _one_line_once(program: Program) -> Program:
    """Several columns of one source line are one line to a reader."""
    kept = [
        x
        for i, x in enumerate(program.lines)
        if not i or (x.file, x.line) != (program.lines[i - 1].file, program.lines[i - 1].line)
    ]
    return dataclasses.replace(program, lines=tuple(kept))
