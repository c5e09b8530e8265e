"""The verb `tui`. Textual and DuckDB are imported when it runs: the command line reads this module for every verb."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..store import arguments, signals
from ..store.errors import Exit, Refused, Usage

if TYPE_CHECKING:
    from .app import Megascope


class Tui:
    """Browse a trace or a live engine in the terminal.

    TRACE is a NAME.mscope directory, also while it is being recorded: the screens follow it. A segment shows what the
    engine's workers do now. It may be left out if one engine is live. Press ? for the keys, q to quit.
    """

    name = "tui"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        parser.add_argument(
            "source", nargs="?", type=Path, metavar="TRACE|SEGMENT", help="default: the one live engine"
        )
        parser.add_argument(
            "--threads", type=arguments.threads, metavar="N", help="of each of two sessions; default: one per core"
        )
        parser.add_argument("--no-history", action="store_true", help="do not keep what is asked in SQL")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Run the verb."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Usage("cannot show the workbench", "this is no terminal", "use megascope report or sql in a pipe")
        from .history import default_path
        from .model import Source

        path: Path = args.source or _only_live()
        source = Source(trace=path) if path.is_dir() else Source(segment=path)
        _check(source)
        from .app import Megascope

        app = Megascope(source, threads=args.threads, history=None if args.no_history else default_path())
        asyncio.run(_show(app))
        return app.return_code or Exit.DONE


async def _show(app: Megascope) -> None:
    """Run the app; SIGTERM and SIGHUP end it as q does, so that it removes what it wrote."""
    loop = asyncio.get_running_loop()
    for number in signals.heeded():
        loop.add_signal_handler(number, app.exit, None, 128 + number)
    await app.run_async()


def _only_live() -> Path:
    from ..capture import control

    return control.only_live()


def _check(source: object) -> None:
    """Refuse what cannot be browsed before the screen changes."""
    from ..store.reader import Trace
    from .model import Source

    assert isinstance(source, Source)
    if source.trace is not None:
        Trace.open(source.trace).close()
    elif source.segment is not None:
        from ..capture import control

        found = control.look(source.segment)
        if found.problem:
            todo = "give a NAME.mscope directory, or a segment that megascope ls shows"
            raise Refused(f"cannot browse {source.segment}", found.problem, todo)
