"""The registry of verbs: each is a class whose docstring is its help, in the folder that does the work."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol

REGISTRY = (
    "megascope.capture.capture_verb:Capture",
    "megascope.capture.verbs:Ls",
    "megascope.capture.verbs:Now",
    "megascope.capture.attach_verbs:Attach",
    "megascope.capture.attach_verbs:Detach",
    "megascope.capture.attach_verbs:Programs",
    "megascope.capture.mark_verb:Mark",
    "megascope.capture.programs.verbs:ProgramVerb",
    "megascope.replay_verb:ReplayVerb",
    "megascope.analyze.verbs:Sql",
    "megascope.analyze.verbs:Schema",
    "megascope.analyze.report_verb:Report",
    "megascope.tui.verbs:Tui",
    "megascope.store.verbs:Check",
    "megascope.analyze.lint_verb:Lint",
)


class Verb(Protocol):
    """What the command line needs of a verb; `run` returns the process's exit code."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def verbs() -> list[Verb]:
    """Every verb, in the order of the help."""
    out: list[Verb] = []
    for entry in REGISTRY:
        module, _, name = entry.partition(":")
        verb: Verb = getattr(importlib.import_module(module), name)()
        out.append(verb)
    return out
