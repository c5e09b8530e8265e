"""The engine's own process: `python -m megascope.capture.engines.cuda --segment PATH [--record] [k=v,…]`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ....store.errors import Exit, MegascopeError
from .settings import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end, to SIGTERM or SIGINT, or to the drainer's stop byte. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="megascope cuda engine", description=__doc__)
    parser.add_argument("--segment", type=Path, required=True, help="where to make the segment")
    parser.add_argument("--record", action="store_true", help="record every hook from the first step")
    parser.add_argument("spec", nargs="?", default="", help="k=v,…")
    args = parser.parse_args(argv)
    try:
        return _run(args.segment, Settings.parse(args.spec), args.record)
    except MegascopeError as e:
        print(f"megascope: {e}", file=sys.stderr)
        return e.code


def _run(path: Path, settings: Settings, record: bool) -> int:
    from .engine import CudaEngine
    from .kernel import Megakernel
    from .libraries import libraries

    engine = CudaEngine(Megakernel(libraries(), settings), path, record=record)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: engine.stop.set())
    how = engine.run()
    engine.close()
    if how == "deadline":
        why = f"it did not finish within seconds={settings.seconds:g}"
        raise MegascopeError("the megakernel met its deadline", why, "give it longer, or look at what it waits for")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
