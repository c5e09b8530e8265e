"""Events per second of the host engine, on one core: simulated and kept, and through a segment with a drainer.

    .venv/bin/python benchmarks/host_engine.py [--steps N] [--runs N] [k=v,…]

`memory`: the engine alone, its rows taken from the workers' queues and counted. `segment`: the engine as a process
that writes rows by column into a segment (policy wait), while this process drains, checks and frees them; the time is
from the first row to the last. Compilation is left out and stated by itself. Medians of several runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from megascope.capture.engines.host import engine_command, parse_spec
from megascope.capture.engines.host.engine import HostEngine
from megascope.capture.engines.host.sinks import MemorySink
from megascope.capture.segment.drain import RingReader
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.summaries import SummaryReader
from megascope.store.errors import MegascopeError


def in_memory(spec: str) -> tuple[int, float]:
    """(events, seconds) of a run whose rows are taken and counted, but not kept."""
    engine = HostEngine(parse_spec(spec))
    engine.load()
    begun = time.perf_counter()
    result = engine.run(MemorySink(keep_rows=False))
    return result.fired, time.perf_counter() - begun


def through_segment(spec: str, directory: Path) -> tuple[int, float]:
    """(rows drained, seconds) of a run in another process, from the first row to the last."""
    path = directory / "segment"
    process = subprocess.Popen(engine_command(path, spec), stdout=subprocess.PIPE, text=True)
    segment = None
    while segment is None:
        try:
            segment = SegmentReader.open(path, write=True)
        except MegascopeError:
            if process.poll() is not None:
                raise
            time.sleep(0.001)
    rings, summaries = RingReader(segment), SummaryReader(segment)
    rows, begun, last = 0, 0.0, 0.0
    while True:
        ended = process.poll() is not None
        got = rings.take().rows.num_rows
        summaries.take()
        if got:
            last = time.perf_counter()
            begun = begun or last
            rows += got
        elif ended:
            break
        else:
            time.sleep(0.0005)
    said = json.loads(process.communicate()[0])
    path.unlink()
    if said["written"] != rows:
        raise SystemExit(f"{rows} rows were drained of {said['written']} written")
    return rows, last - begun


def main() -> int:
    """Print one line per deployment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("spec", nargs="?", default="", help="more of the spec, k=v,…")
    args = parser.parse_args()
    begun = time.perf_counter()
    HostEngine(parse_spec("steps=1")).load()
    print(f"compiled or loaded in {time.perf_counter() - begun:.1f} s")
    print(f"{'schedule':<10}{'ranks':>6}{'events':>12}{'memory M/s':>12}{'segment M/s':>13}")
    where = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as directory:
        for schedule in ("dynamic", "static"):
            for ranks in (1, 2):
                spec = f"schedule={schedule},ranks={ranks},steps={args.steps}"
                spec += f",{args.spec}" if args.spec else ""
                memory = [in_memory(spec) for _ in range(args.runs)]
                segment = [through_segment(spec, Path(directory)) for _ in range(args.runs)]
                rates = [statistics.median(n / s / 1e6 for n, s in runs) for runs in (memory, segment)]
                print(f"{schedule:<10}{ranks:>6}{memory[0][0]:>12,}{rates[0]:>12.1f}{rates[1]:>13.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
