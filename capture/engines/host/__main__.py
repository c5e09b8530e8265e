"""The host engine as a process: makes a segment, runs a spec into it, ends in order on SIGTERM or SIGINT.

    python -m megascope.capture.engines.host --segment PATH [--truth FILE] [k=v,…]

One JSON line on stdout says what the run came to.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from ....store.errors import Exit, MegascopeError, Usage
from ....store.tables import HOOKS, RING_ROW
from ...segment.layout import Layout
from ...segment.sink import SegmentSink
from ...segment.words import BLOCK_HEADER, CHUNK, MAX_BLOCKS, Clock, Policy
from ...segment.writer import SegmentWriter
from .engine import HostEngine, exported_hooks, monitors_of
from .spec import Spec, parse_spec

IMAGE_BYTES = 4 << 20
"""For the code and the descriptions of all programs that are attached."""


def layout_of(spec: Spec) -> Layout:
    """Sizes of a segment for a run: rings of spec.ring_mb in all, summary rings that hold two cuts.

    Raises Usage when they cannot be had.
    """
    monitor = monitors_of(spec)
    monitors = int(monitor.max()) + 1
    per_monitor = -(-len(monitor) // monitors) * (1 + len(HOOKS))
    summary_rows = max(512, -(-2 * per_monitor // CHUNK) * CHUNK)
    if summary_rows > MAX_BLOCKS * CHUNK:
        raise Usage("cannot lay out the segment", f"{monitors} monitors are too few", "give more monitors")
    rows = spec.ring_mb * (1 << 20) / monitors / RING_ROW.dtype.itemsize
    block_rows = 2048
    while block_rows > 64 and rows / block_rows < 16:
        block_rows //= 2
    blocks = min(MAX_BLOCKS, int(spec.ring_mb * (1 << 20) / monitors / (BLOCK_HEADER + block_rows * 68)))
    return Layout(
        workers=len(monitor),
        monitors=monitors,
        ranks=spec.model.ranks,
        block_rows=block_rows,
        blocks=max(2, blocks),
        summary_rows=summary_rows,
        host_bytes=4 << 20,
        clock=Clock.VIRTUAL,
        epoch_ns=int(spec.epoch_ms * 1e6),
        policy=Policy[spec.policy.upper()],
        exported=exported_hooks(spec),
        name="host",
        program_slots=spec.programs,
        image_bytes=IMAGE_BYTES,
        map_bytes=spec.map_kb << 10,
        arena_bytes=spec.arena_mb << 20,
        telemetry=spec.telemetry,
    )


def main(argv: list[str] | None = None) -> int:
    """Run; the exit code (store.errors.Exit)."""
    parser = argparse.ArgumentParser(prog="python -m megascope.capture.engines.host", description=__doc__)
    parser.add_argument("--segment", type=Path, required=True, help="the segment to make")
    parser.add_argument("--truth", type=Path, help="where to write what the fault controls did, as JSON")
    parser.add_argument("--hold", action="store_true", help="begin when a recorder says which hooks it wants")
    parser.add_argument("spec", nargs="?", default="", help="k=v,…")
    args = parser.parse_args(argv)
    signalled: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        signalled.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        spec = parse_spec(args.spec)
        engine = HostEngine(spec)
        engine.load()
        about = {"kind": "host", "params": spec.params(), "perturbation": {}}
        tables = engine.tables()
        with SegmentWriter.create(
            args.segment, layout_of(spec), side_tables=tables, engine=about, record=bool(spec.record)
        ) as writer:
            try:
                result = engine.run(SegmentSink(writer), lambda: bool(signalled), hold=args.hold)
            except BaseException:
                writer.end(engine.t, max(engine.step, 0), failed=True)
                raise
            writer.end(result.t, max(result.steps - 1, 0))
            if args.truth:
                args.truth.write_text(json.dumps([asdict(i) for i in result.truth], indent=1) + "\n")
            print(json.dumps({k: v for k, v in asdict(result).items() if k != "truth"}), flush=True)
            writer.check_whole()
    except MegascopeError as e:
        print(e, file=sys.stderr)
        return e.code
    return Exit.INTERRUPTED if signal.SIGINT in signalled else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
