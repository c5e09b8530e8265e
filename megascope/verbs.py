"""The registry of verbs: each is a class whose docstring is its help, in the folder that does the work."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol

REGISTRY = {
    "capture": "megascope.capture.capture_verb:Capture",
    "ls": "megascope.capture.verbs:Ls",
    "now": "megascope.capture.verbs:Now",
    "attach": "megascope.capture.attach_verbs:Attach",
    "detach": "megascope.capture.attach_verbs:Detach",
    "programs": "megascope.capture.attach_verbs:Programs",
    "mark": "megascope.capture.mark_verb:Mark",
    "program": "megascope.capture.programs.verbs:ProgramVerb",
    "replay": "megascope.replay_verb:ReplayVerb",
    "sql": "megascope.analyze.verbs:Sql",
    "schema": "megascope.analyze.verbs:Schema",
    "report": "megascope.analyze.report_verb:Report",
    "tui": "megascope.tui.verbs:Tui",
    "check": "megascope.store.verbs:Check",
    "lint": "megascope.analyze.lint_verb:Lint",
}
"""Where the verb of each name is, in the order of the help."""


class Verb(Protocol):
    """What the command line needs of a verb; `run` returns the process's exit code."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def verb(name: str) -> Verb:
    """The verb of that name. Only its own modules are imported."""
    module, _, of = REGISTRY[name].partition(":")
    found: Verb = getattr(importlib.import_module(module), of)()
    return found


def verbs() -> list[Verb]:
    """Every verb, in the order of the help."""
    return [verb(name) for name in REGISTRY]
