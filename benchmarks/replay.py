"""Replay on one core: events a second of a standard monitor over a trace, beside DuckDB over the same columns.

    python benchmarks/replay.py [TRACE.mscope | EVENTS]… [--program NAME] [--rounds N]      (default: 20e6, latency)

Each round replays the trace, once whole (decoding Parquet, running, closing epochs) and once over columns that are
decoded already, and lets DuckDB group the same columns by class. Rounds are interleaved, and the best of each is
shown: other work on the machine can only make one slower. The process is pinned to one core. A number makes a synthetic
trace of that many events in the temporary directory and removes it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))
import synthetic

from megascope.capture.engines.recorded.columns import Decoder
from megascope.capture.engines.recorded.events import Events
from megascope.capture.engines.recorded.recording import Recording
from megascope.capture.programs import standard
from megascope.capture.programs.native import Native
from megascope.capture.programs.native_context import columns_read
from megascope.capture.programs.verifier import verify
from megascope.store.tables import HOOKS
from megascope.store.trace import Trace

HELD_ROWS = 4 << 20
"""Rows that are decoded beforehand; more than the caches hold."""


class Bench:
    """One trace and one program."""

    def __init__(self, trace: Trace, name: str) -> None:
        self.recording = Recording(trace)
        self.verdict = verify(standard.load(name))
        self.limits = standard.BY_NAME[name].limits
        self.native = Native(self.verdict, self.recording.workers, self.limits)
        self.rows = sum(p.rows for p in trace.parts("events"))
        self.parts = [str(p.path) for p in trace.parts("events")]
        self.held = list(self._some())

    def _stretches(self) -> Iterator[dict[str, np.ndarray]]:
        decoder = Decoder(self.recording, columns_read(self.verdict), self.verdict.program.mask)
        for _, stretches in Events(self.recording, decoder).epochs():
            for stretch in stretches:
                yield stretch.columns
        decoder.close()

    def _some(self) -> Iterator[dict[str, np.ndarray]]:
        rows = 0
        for columns in self._stretches():
            yield {n: c.copy() for n, c in columns.items() if n in columns_read(self.verdict)}
            rows += len(columns["t"])
            if rows >= HELD_ROWS:
                return

    def decode(self) -> int:
        """Parquet to columns of the ABI, by epoch."""
        return sum(len(c["t"]) for c in self._stretches())

    def whole(self) -> int:
        """Parquet to closed epochs."""
        rows = 0
        decoder = Decoder(self.recording, columns_read(self.verdict), self.verdict.program.mask)
        workers = np.arange(self.recording.workers)
        for _, stretches in Events(self.recording, decoder).epochs():
            for stretch in stretches:
                n = len(stretch.rows)
                self.native.run_columns(stretch.columns, np.zeros(n, np.uint32), 1)
                rows += n
            self.native.close(workers)
        decoder.close()
        return rows

    def run(self) -> int:
        """Columns that are there."""
        rows = 0
        for columns in self.held:
            n = len(columns["t"])
            self.native.run_columns(columns, np.zeros(n, np.uint32), 1)
            rows += n
        return rows

    def group_by(self) -> int:
        """DuckDB: the same columns, grouped by class and a bucket of the duration, of the same hooks."""
        hooks = ", ".join(str(h.id) for h in HOOKS if self.verdict.program.mask >> h.id & 1)
        with duckdb.connect(config={"threads": 1}) as con:
            con.execute(
                "SELECT task_class, hook, floor(16 * log2(greatest(since_ns, 1))) AS bucket, count(*), sum(since_ns) "
                f"FROM read_parquet(?) WHERE hook IN ({hooks}) AND t >= 0 AND worker >= 0 GROUP BY ALL",
                [self.parts],
            ).fetchall()
        return self.rows


def measure(path: Path, name: str, rounds: int) -> None:
    """Print events a second of each, best of `rounds`."""
    with Trace.open(path) as trace:
        bench = Bench(trace, name)
        best: dict[str, float] = {}
        what: dict[str, Callable[[], int]] = {
            "run, columns in memory": bench.run,
            "decode alone": bench.decode,
            "replay, from Parquet": bench.whole,
            "DuckDB GROUP BY, from Parquet": bench.group_by,
        }
        for _ in range(rounds):
            for label, act in what.items():
                began = time.process_time()
                rows = act()
                best[label] = max(best.get(label, 0.0), rows / (time.process_time() - began))
    print(f"{path.name}: {bench.rows:,} events, program {name}, one core, best of {rounds}")
    for label, rate in best.items():
        print(f"  {label:<32}{rate / 1e6:8.1f} M events/s")


def main() -> None:
    """Measure every trace that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=["20e6"])
    parser.add_argument("--program", default="latency")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    pa.set_cpu_count(1)
    for given in args.traces:
        if Path(given).is_dir():
            measure(Path(given), args.program, args.rounds)
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "synthetic.mscope"
            synthetic.write(path, int(float(given)))
            measure(path, args.program, args.rounds)


if __name__ == "__main__":
    main()
