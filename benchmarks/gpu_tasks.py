"""What watching costs tasks of a given length, on a GPU: cycles a task, slowdown, events observed and their coverage.

    python benchmarks/gpu_tasks.py [--out FILE.json] [--rounds N]

Every block does tasks of one length (a chain of dependent multiply-adds, then a barrier), with start and complete fired
around each; monitors and programs are those of the megakernel. Variants run interleaved; medians. Slowdown is against
the build without hooks; the time is the device's own, from a common start to each block's end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from megascope.capture.engines.cuda.compilation import Hooks, cubin
from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import THREADS, Megakernel, clock_state
from megascope.capture.engines.cuda.libraries import library, load_kernels
from megascope.capture.engines.cuda.monitors import launch_monitors
from megascope.capture.engines.cuda.parameters import HOST_GO, SEGMENT, SEGMENT_SYMBOL
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.programs import image
from megascope.capture.programs.execution import Limits
from megascope.capture.programs.program import Program
from megascope.capture.programs.standard import load
from megascope.capture.segment.mailbox import Mailbox
from megascope.capture.segment.reader import SegmentReader
from megascope.capture.segment.words import Cursor, Record, Summary

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from monitors import histogram

LENGTHS = (1, 2, 5, 24, 96)
"""Rounds of 100 multiply-adds: about 0.2, 0.4, 1, 5 and 20 µs."""
TARGET_NS = 150_000_000
CLOCK_GHZ = 1.98


def variants() -> dict[str, tuple[Hooks, tuple[Program, ...], bool]]:
    """name → build, programs attached, everything recorded."""
    standard = tuple(load(name) for name in ("latency", "slow_tasks"))
    out: dict[str, tuple[Hooks, tuple[Program, ...], bool]] = {
        "no hooks": (Hooks.NONE, (), False),
        "compiler-native begin and end": (Hooks.NATIVE, (), False),
    }
    for transport, build in (("warp", Hooks.QUEUE), ("block", Hooks.DEVICE)):
        out[f"{transport}: detached"] = build, (), False
        out[f"{transport}: one histogram"] = build, (histogram(),), False
        out[f"{transport}: standard monitors"] = build, standard, False
        out[f"{transport}: recording"] = build, (), True
    out["no hooks, again"] = Hooks.NONE, (), False
    return out


class Bench:
    """The kernels `tasks` of firing.cu, one build for each way of firing."""

    def __init__(self) -> None:
        self.cupy = library()
        base = "steps=20,ring_mb=300,summary_rows=4080,seconds=20,arena_mb=2000,epoch_ms=50"
        self.kernels = {
            Hooks.QUEUE: Megakernel(self.cupy, Settings.parse(base)),
            Hooks.DEVICE: Megakernel(self.cupy, Settings.parse(base + ",transport=block")),
        }
        architecture = self.kernels[Hooks.QUEUE].architecture
        self.modules = {h: self.cupy.RawModule(path=str(cubin("firing.cu", architecture, h))) for h in Hooks}
        self.whole = self.cupy.RawModule(path=str(cubin("megakernel.cu", architecture, Hooks.DEVICE)))
        for module in (*self.modules.values(), self.whole):
            load_kernels(module)
        for kernel in self.kernels.values():
            kernel.monitors()
        blocks = self.kernels[Hooks.QUEUE].blocks
        self.elapsed = self.cupy.zeros(blocks, np.uint64)
        self.sink = self.cupy.zeros(blocks * 128, np.float32)
        self.path = Path(f"/dev/shm/megascope-bench-{os.getpid()}.seg")
        self.attach_ns: list[int] = []

    def one(
        self, build: Hooks, programs: tuple[Program, ...], record: bool, rounds: int, count: int
    ) -> dict[str, float]:
        """One launch: ns a task, and what was observed of the events."""
        kernel = self.kernels.get(build, self.kernels[Hooks.QUEUE])
        if build not in self.kernels:
            kernel.prepare(self.modules[build])
            self._launch(kernel, build, rounds, count)
            kernel.host.words[HOST_GO] = 1
            kernel.stream.synchronize()
            return {"ns": float(self.elapsed.get().mean()) / count}
        self.path.unlink(missing_ok=True)
        engine = CudaEngine(kernel, self.path, record=record)
        try:
            mask = engine.segment.layout.exported if record else 0
            kernel.prepare(self.modules[build], engine.memory, mask=mask)
            if build == Hooks.DEVICE:
                self._monitors(kernel)
            self._launch(kernel, build, rounds, count)
            asking = threading.Thread(target=self._attach, args=(programs,), daemon=True)
            asking.start()
            while asking.is_alive():
                engine.programs.poll()
            kernel.host.words[HOST_GO] = 1
            while kernel.running:
                engine.programs.poll()
                time.sleep(0.0005)
            engine.programs.end()
            self.attach_ns += engine.programs.took_ns
            return {"ns": float(self.elapsed.get().mean()) / count} | self._coverage(engine)
        finally:
            engine.close()
            self.path.unlink(missing_ok=True)

    def _launch(self, kernel: Any, build: Hooks, rounds: int, count: int) -> None:
        kernel.host.words[HOST_GO] = 0
        arguments = (np.uint32(count), np.uint32(rounds), self.elapsed, self.sink)
        with kernel.stream:
            self.modules[build].get_function("tasks")((kernel.blocks,), (THREADS[build],), arguments)

    def _monitors(self, kernel: Any) -> None:
        """Monitor blocks, which another module holds: it is given the same parameters."""
        self._engine_of(self.whole)[...] = self._engine_of(self.modules[Hooks.DEVICE])
        launch_monitors(self.cupy, self.whole, kernel.monitor_stream, kernel.monitor_count, 0)

    def _engine_of(self, module: Any) -> Any:
        return self.cupy.ndarray((SEGMENT.itemsize,), np.uint8, module.get_global(SEGMENT_SYMBOL))

    def _attach(self, programs: tuple[Program, ...]) -> None:
        with SegmentReader.open(self.path, write=True) as segment:
            for slot, program in enumerate(programs, 1):
                with Mailbox(segment, "benchmark") as box:
                    said = box.attach(slot, image.pack(program), Limits())
                    assert said.code == 0, said

    @staticmethod
    def _coverage(engine: CudaEngine) -> dict[str, float]:
        heads = engine.segment.cursor[:, Cursor.SUMMARY_HEAD].astype(int)
        found = np.concatenate([engine.segment.summary[m, :h] for m, h in enumerate(heads)])
        its = found[found[:, Summary.WHAT] & np.uint64(0xFF) == Record.COVERAGE]
        intervals = found[found[:, Summary.WHAT] & np.uint64(0xFF) == Record.INTERVAL]
        eligible, observed = int(its[:, Summary.ELIGIBLE].sum()), int(its[:, Summary.OBSERVED].sum())
        return {
            "events": int(intervals[:, Summary.SEQ_TO].sum() - intervals[:, Summary.SEQ_FROM].sum()),
            "eligible": eligible,
            "observed": observed,
            "coverage": observed / eligible if eligible else 1.0,
            "faulted": int(its[:, Summary.FAULTED].sum()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    bench = Bench()
    result: dict[Any, Any] = {}
    print("clocks:", clock_state())
    for length in LENGTHS:
        got: dict[str, list[dict[str, float]]] = {name: [] for name in variants()}
        count = max(2000, int(TARGET_NS / (length * 210)))
        for _ in range(args.rounds):
            for name, (build, programs, record) in variants().items():
                got[name].append(bench.one(build, programs, record, length, count))
        base = statistics.median(r["ns"] for r in got["no hooks"])
        print(f"\ntasks of {base:,.0f} ns, {count} a block, {bench.kernels[Hooks.QUEUE].blocks} blocks")
        for name, runs in got.items():
            row = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
            row["cycles"], row["slowdown"] = (row["ns"] - base) * CLOCK_GHZ, row["ns"] / base - 1
            seconds = row["ns"] * count / 1e9
            text = f"  {name:32} {row['cycles']:+8.1f} cycles a task  {100 * row['slowdown']:+7.2f} %"
            if row.get("eligible"):
                row["observed_per_s"] = row["observed"] / seconds
                text += f"  {row['observed_per_s']:.3g} events/s observed, {100 * row['coverage']:.2f} %"
            print(text, flush=True)
            result.setdefault(length, {"task_ns": base, "count": count})[name] = row
    took = np.array(bench.attach_ns) / 1e6
    result["attach_ms"] = {"n": len(took), "p50": float(np.median(took)), "p99": float(np.quantile(took, 0.99))}
    print("\nattach, published to last acknowledgement, ms:", result["attach_ms"])
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
