"""The CUDA engine as a process: makes a segment, runs the megakernel into it, ends in order on SIGTERM or SIGINT.

    python -m megascope.capture.engines.cuda --segment PATH [--record] [--hold] [--truth FILE] [k=v,…]

One JSON line on stdout says what the run came to.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from ....store.errors import Exit, MegascopeError
from .settings import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end, to SIGTERM or SIGINT, or to the drainer's stop byte. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m megascope.capture.engines.cuda", description=__doc__)
    parser.add_argument("--segment", type=Path, required=True, help="the segment to make")
    parser.add_argument("--record", action="store_true", help="record every hook from the first step")
    parser.add_argument("--hold", action="store_true", help="begin when a recorder says which hooks it wants")
    parser.add_argument("--truth", type=Path, help="where to write what the fault controls did, as JSON")
    parser.add_argument("spec", nargs="?", default="", help="k=v,…")
    args = parser.parse_args(argv)
    try:
        return _run(args, Settings.parse(args.spec))
    except MegascopeError as e:
        print(e, file=sys.stderr)
        return e.code


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from .engine import CudaEngine
    from .kernel import Megakernel
    from .libraries import library

    engine = CudaEngine(Megakernel(library(), settings), args.segment, record=args.record, hold=args.hold)
    signalled: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        signalled.append(number)
        engine.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        how = engine.run()
    finally:
        engine.close()
    if args.truth:
        args.truth.write_text(json.dumps([asdict(i) for i in engine.truth()], indent=1) + "\n")
    print(json.dumps({"ended": how, **engine.counts()}))
    if how == "deadline":
        why = f"it did not finish within seconds={settings.seconds:g}"
        raise MegascopeError("the megakernel met its deadline", why, "give it longer, or look at what it waits for")
    engine.segment.check_whole()
    return Exit.INTERRUPTED if signal.SIGINT in signalled else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
