"""The verb `lint`."""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path

from ..store.errors import Exit, Usage


class Lint:
    """Judge an integration by a trace that it recorded.

    For authors of a runtime or compiler that fires hooks: undeclared hooks, classes and workers, halves without their
    partner, counters that go back, dependencies released too often, requests without slots, and more. Each finding says
    where, when first, how often, and what it breaks downstream. Exit code 0: nothing found; 1: something was.
    """

    name = "lint"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="a NAME.mscope directory")
        parser.add_argument("--rules", action="store_true", help="list the rules; no TRACE is read")

    def run(self, args: argparse.Namespace) -> int:
        from .lint import PLACES, lint
        from .lint_rules import RULES

        if args.rules:
            for rule in RULES:
                print(f"{rule.name}: {rule.meaning}; else {rule.breaks}")
            return Exit.DONE
        if args.trace is None:
            raise Usage("cannot judge a recording", "no TRACE was given", "give a NAME.mscope directory, or --rules")
        verdict = lint(args.trace)
        for name, group in groupby(verdict.findings, key=lambda f: f.rule.name):
            found = list(group)
            rule = found[0].rule
            cases = sum(f.cases for f in found)
            print(f"{rule.severity}: {name}: not so that {rule.meaning}; {rule.breaks}")
            for f in found[:PLACES]:
                print(f"    {f.place}: {f.cases:,} times" + (f", first at t = {f.t}" if f.t is not None else ""))
            if len(found) > PLACES:
                print(f"    and {len(found) - PLACES} more places; {cases:,} cases in all")
        wrong = len({f.rule.name for f in verdict.findings})
        judged = verdict.rules - len(verdict.not_judged)
        print(f"{args.trace}: {judged} rules judged, {wrong} not kept", file=sys.stderr)
        if verdict.not_judged:
            names = ", ".join(verdict.not_judged)
            print(f"not judged, because events are missing ({verdict.loss}): {names}", file=sys.stderr)
        return Exit.FAILED if verdict.findings else Exit.DONE
