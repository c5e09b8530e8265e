"""`megascope program compile`: what a query becomes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...store.errors import Exit, Usage
from .verdict import Rejected

if TYPE_CHECKING:
    from .language.query import HostClause, Query


class Compile:
    """Compile a query: its verdict and maps, what the host does, and the bytecode under its statements.

    P is a query, or a file with one. Names of classes, operators, requests and coordinates are those of TARGET, a
    trace or a segment. With -o, P may be an object too, and what it becomes is written as a program image, which goes
    wherever a program does; a query's image has its source. Exits with 3, and writes nothing, if it is refused.
    """

    name = "compile"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from .verbs import add_program

        add_program(parser)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write its program image to FILE")
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")

    def run(self, args: argparse.Namespace) -> int:
        if args.output is not None:
            return _write(args)
        from .disassembler import disassemble
        from .verbs import print_verdict

        query = _compiled(args)
        verdict = print_verdict(query.program)
        for head, text in _said(query):
            print(f"{head:<10}{text}")
        print()
        for line in disassemble(query.program, source=True, numbers=True):
            print(line)
        return Exit.REFUSED if isinstance(verdict, Rejected) else Exit.DONE


def _write(args: argparse.Namespace) -> int:
    from ...store.new_file import check_free, file_appears
    from .image import pack
    from .verbs import load, print_verdict

    check_free(args.output, args.force)
    program = load(args)
    if isinstance(print_verdict(program), Rejected):
        return Exit.REFUSED
    with file_appears(args.output, force=args.force) as out:
        out.write(pack(program))
    return Exit.DONE


def _compiled(args: argparse.Namespace) -> Query:
    from .language import compile as compile_query
    from .sources import query_text, tables_of
    from .verbs import constants

    text = query_text(args.program, query=args.query)
    if text is None:
        todo = "see megascope program show, or write its image with -o"
        raise Usage(f"cannot compile {args.program}", "it is compiled already", todo)
    return compile_query(text, tables_of(args.target) if args.target else None, constants(args))


def add_query(parser: argparse.ArgumentParser) -> None:
    """The arguments of every verb that takes a query beside an object: -e, and where names come from."""
    parser.add_argument("-e", "--query", action="store_true", help="P is a query, even if a file is called so")
    text = "trace or segment whose names the query uses"
    parser.add_argument("target", nargs="?", type=Path, metavar="TARGET", help=text)


def _said(query: Query) -> Iterator[tuple[str, str]]:
    """(heading, one line) of what is the host's business."""
    program = query.program
    if program.sample > 1:
        yield "selects", f"sampled(1/{program.sample}): one in {program.sample} tasks"
    if program.emit_limit is not None:
        yield "limit", f"{program.emit_limit:,} rows a second and worker"
    for answer in query.answers:
        keys = f"[{', '.join(c.name for c in answer.columns)}]" if answer.columns else ""
        yield "answer", f"@{answer.map}{keys}: {answer.what}"
    for cell in query.feedback:
        what = "total" if cell.quantile is None else f"quantile {cell.quantile:g}"
        each = ", one for each key" if cell.keyed else ""
        yield "feedback", f"{cell.map}: {what} of @{cell.source} over {cell.window_ns / 1e9:g} s{each}"
    for clause in query.host:
        when = f"interval of {clause.period_ns / 1e9:g} s" if clause.when == "interval" else clause.when
        yield "host", f"{when}: {_actions(clause) or 'nothing'}"


def _actions(clause: HostClause) -> str:
    from .language.query import Clear, Print

    def action(s: object) -> str:
        if isinstance(s, Print):
            return f"print @{s.map}" if s.top is None else f"print the top {s.top} of @{s.map}"
        return f"clear @{s.map}" if isinstance(s, Clear) else "printf"

    return ", ".join(map(action, clause.statements))
