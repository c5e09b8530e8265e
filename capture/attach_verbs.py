"""The verbs that change what watches a live engine: attach, detach, programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..store.errors import Exit, Usage
from ..store.tables import HOOKS
from .columns import print_columns
from .live_line import short
from .programs.execution import UNLIMITED, Limits
from .programs.verbs import add_constants, constants


def add_programs(parser: argparse.ArgumentParser, flag: str, more: str = "") -> None:
    """Arguments of every verb that attaches. more: what else may be said with --program."""
    if flag.startswith("-"):
        text = "a standard monitor's name, an object or a query; may be given several times"
        parser.add_argument(flag, action="append", default=[], metavar="P", help=text + more)
    else:
        parser.add_argument(flag, metavar="P", help="an object of clang's, an image, or a query")
    add_constants(parser)
    text = "what a program may use per worker and epoch: instructions=N, rows=N or both with a comma"
    parser.add_argument("--budget", default="", metavar="K=V", help=text)


def budget(args: argparse.Namespace) -> Limits:
    """What --budget says. Raises Usage."""
    values = {"instructions": UNLIMITED, "rows": UNLIMITED}
    for part in filter(None, args.budget.split(",")):
        name, _, text = part.partition("=")
        if name not in values or not text.isdecimal() or not 0 < int(text) < UNLIMITED:
            why = f"{part!r} is neither instructions=N nor rows=N"
            raise Usage("cannot read --budget", why, "say --budget instructions=1000000,rows=1000")
        values[name] = int(text)
    return Limits(**values)


def _program(args: argparse.Namespace, what: str, word: str) -> tuple[Path, str]:
    """The segment and the program that are meant. Raises Usage: the only word may be a segment, not a program."""
    from . import control

    if args.segment is None and not getattr(args, "query", False) and control.is_segment(args.program):
        why = f"no program is given, only the segment {args.program}"
        raise Usage(f"cannot {what}", why, f"say megascope {what} {args.program} {word}")
    return args.segment or control.only_live(), args.program


class Attach:
    """Attach a program to a live engine, which goes on running.

    P is an object of clang's (-target bpf -g), an image, or a query. It is verified here and by the engine, and runs
    until it is detached; a capture of the engine records what its maps hold and what it emits.
    """

    name = "attach"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("segment", nargs="?", type=Path, help="a live segment (default: the one live engine)")
        add_programs(parser, "program")
        parser.add_argument("-e", "--query", action="store_true", help="P is a query, even if a file is called so")
        parser.add_argument("--name", help="another name for it")
        parser.add_argument("--replace", action="store_true", help="take the place of the program of that name")

    def run(self, args: argparse.Namespace) -> int:
        from . import control

        segment, program = _program(args, "attach", "PROGRAM")
        done = control.attach(
            segment,
            program,
            constants(args),
            budget(args),
            name=args.name,
            query=args.query,
            replace=args.replace,
        )
        print(f"attached {done.name} (program {done.program}) in {done.took_s * 1e3:.1f} ms", file=sys.stderr)
        return Exit.DONE


class Detach:
    """Detach a program from a live engine. What its maps hold is exported first, for whoever records."""

    name = "detach"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("segment", nargs="?", type=Path, help="a live segment (default: the one live engine)")
        parser.add_argument("program", metavar="NAME", help="name of the program (see megascope programs)")

    def run(self, args: argparse.Namespace) -> int:
        from . import control

        done = control.detach(*_program(args, "detach", "NAME (see megascope programs)"))
        print(f"detached {done.name} (program {done.program}) in {done.took_s * 1e3:.1f} ms", file=sys.stderr)
        return Exit.DONE


class Programs:
    """List the programs that a live engine runs: hooks, limits, memory, and what they have seen so far."""

    name = "programs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("segment", nargs="?", type=Path, help="a segment (default: the one live engine)")

    def run(self, args: argparse.Namespace) -> int:
        from . import control

        found = control.programs(args.segment or control.only_live())
        if not found.programs:
            print("no program is attached", file=sys.stderr)
        else:
            rows = [("NAME", "PROGRAM", "HOOKS", "INSTRUCTIONS", "ROWS", "MEMORY", "OBSERVED", "MISSING", "EMITTED")]
            for p in found.programs:
                rows.append(
                    (
                        p.name,
                        str(p.line.program),
                        ",".join(h.name for h in HOOKS if p.line.hooks >> h.id & 1),
                        "-" if p.line.instructions >= UNLIMITED else f"{p.line.instructions:,}",
                        "-" if p.line.rows >= UNLIMITED else f"{p.line.rows:,}",
                        short(p.line.memory, "B"),
                        f"{p.line.observed:,}",
                        f"{p.line.missing:,}",
                        f"{p.line.emitted:,}",
                    )
                )
            print_columns(rows)
        used, arena = short(found.arena_used, "B"), short(found.arena, "B")
        print(f"maps use {used} of {arena}; {len(found.programs)} of {found.slots} slots are taken", file=sys.stderr)
        return Exit.DONE
