"""The same run under several interleavings, and with monitors that get few turns: whatever is lost is accounted for."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

import build
import driver
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from device_runs import check_identities, records
from monitors import attacher, histogram
from test_device_programs import histograms, program_of, start, stop

from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.segment.words import Record, Summary

pytestmark = pytest.mark.skipif(build.COMPILER is None, reason=build.MISSING)
SPEC = (
    "layers=1,d_model=16,heads=1,kv_heads=1,head_dim=16,ffn=16,vocab=16,slots=2,context=32,qkv_tile=16,out_tile=16,"
    "ffn_tile=16,vocab_tile=16,prompt_tokens=6,max_tokens=6,steps=40,seconds=100,ring_mb=16,arena_mb=1,"
    "monitor_blocks=1,summary_rows=4080"
)
MONITOR = {"warp": driver.Slow("megakernel", 5, 60), "block": driver.Slow("monitors", 0, 200)}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("transport", ["warp", "block"])
def test_events_that_slow_monitors_lose_are_counted(transport: str, seed: int) -> None:
    path = Path(f"/dev/shm/megascope-test-{uuid.uuid4().hex[:12]}.seg")
    cupy = driver.cupy(2, seed=seed, slow=MONITOR[transport])
    schedule = "dynamic" if seed % 2 else "static"
    kernel = Megakernel(
        cupy, Settings.parse(f"{SPEC},transport={transport},schedule={schedule}"), compiled=build.compiled
    )
    try:
        engine = CudaEngine(kernel, path, record=True)
        assert engine.run() == "done"
        counts = engine.counts()
        assert counts["fired"] == counts["dequeued"] + counts["lost"]
        assert counts["lost"] > 0, "they were slow"
        total = check_identities(engine.segment)
        assert total["eligible"] == counts["fired"]
        assert total["lost"] == counts["lost"]
        engine.close()
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("transport", ["warp", "block"])
def test_changes_while_a_monitor_is_overloaded(transport: str, seed: int) -> None:
    """Programs come, are replaced and leave while queues lose: what each has counted, its coverage says it observed."""
    path = Path(f"/dev/shm/megascope-test-{uuid.uuid4().hex[:12]}.seg")
    slow = {"warp": driver.Slow("megakernel", 5, 8), "block": driver.Slow("monitors", 0, 40)}[transport]
    cupy = driver.cupy(2, seed=seed, slow=slow)
    spec = f"{SPEC},steps=60000,seconds=60,transport={transport},epoch_ms=50,arena_mb=16,monitor_blocks=2"
    kernel = Megakernel(cupy, Settings.parse(spec), compiled=build.compiled)
    try:
        engine = CudaEngine(kernel, path, record=False)
        run = start(engine)
        program, numbers = histogram(entries=32), []
        with attacher(path) as a:
            for _ in range(3):
                numbers.append(a.attach(program, 1))
                time.sleep(0.05)
                numbers.append(a.attach(program, 1, replace=True))
                a.drain()
                a.detach(1)
                a.drain()
            stop(engine, run)
            a.drain()
            coverage = records(engine.segment, Record.COVERAGE)
            observed = 0
            for number in numbers:
                its = coverage[program_of(coverage) == number]
                said = histograms(a, program.maps[0], number)
                assert sum(int(h[0]) for h in said.values()) == its[:, Summary.OBSERVED].sum()
                observed += int(its[:, Summary.OBSERVED].sum())
        assert observed > 0
        assert engine.counts()["lost"] > 0, "the monitors were slow"
        check_identities(engine.segment, written=False)
        engine.close()
    finally:
        path.unlink(missing_ok=True)
