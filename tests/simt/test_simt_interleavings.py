"""The same run under several interleavings, and with monitors that get few turns: whatever is lost is accounted for."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

import build
import driver
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from device_runs import check_identities, records
from monitors import attacher, counting
from test_device_programs import program_of, start, stop

from megascope.capture.engines.cuda import programs
from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.settings import Settings
from megascope.capture.segment import map_ring
from megascope.capture.segment.words import Record, Summary
from megascope.store.tables import HOOK_BY_NAME

pytestmark = pytest.mark.skipif(build.COMPILER is None, reason=build.MISSING)
SPEC = (
    "layers=1,d_model=16,heads=1,kv_heads=1,head_dim=16,ffn=16,vocab=16,slots=2,context=32,qkv_tile=16,out_tile=16,"
    "ffn_tile=16,vocab_tile=16,prompt_tokens=6,max_tokens=6,steps=40,seconds=100,ring_mb=16,arena_mb=1,"
    "monitor_blocks=1,summary_rows=4080"
)
MONITOR = {"warp": driver.Slow("megakernel", 5, 60), "block": driver.Slow("monitors", 0, 200)}


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["warp", "block"])
def test_changes_while_a_monitor_is_overloaded(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs come, are replaced and leave while queues lose: what each has counted, its coverage says it observed."""
    monkeypatch.setattr(programs, "PATIENCE_S", 60.0)
    path = Path(f"/dev/shm/megascope-test-{uuid.uuid4().hex[:12]}.seg")
    slow = {"warp": driver.Slow("megakernel", 5, 20), "block": driver.Slow("monitors", 0, 40)}[transport]
    spec = f"{SPEC},steps=60000,seconds=90,transport={transport},epoch_ms=50,monitor_blocks=2"
    kernel = Megakernel(driver.cupy(2, slow=slow), Settings.parse(spec), compiled=build.compiled)
    try:
        engine = CudaEngine(kernel, path, record=True)
        run = start(engine)
        program = counting()
        with attacher(path) as a:
            numbers = [a.attach(program, 1)]
            for _ in range(3):
                time.sleep(0.05)
                numbers.append(a.attach(program, 1, replace=True))
                a.drain()
            a.detach(1)
            stop(engine, run)
            a.drain()
        coverage = records(engine.segment, Record.COVERAGE)
        observed = []
        for number in numbers:
            told = [map_ring.entries(program.maps[0], n, body) for span, n, body in a.records if span.program == number]
            counted = sum(int(entries.values.view("<u8").sum()) for entries in told)
            observed.append(int(coverage[program_of(coverage) == number][:, Summary.OBSERVED].sum()))
            assert counted == observed[-1], number
        assert sum(observed) > 0
        assert engine.counts()["lost"] > 0, "the monitors were slow"
        check_identities(engine.segment, written=False)
        engine.close()
    finally:
        path.unlink(missing_ok=True)


def test_firing_is_measured_without_a_segment() -> None:
    """What a firing costs is measured where no host has filled `segment`: the mask is the kernel's argument."""
    cupy = driver.cupy(2)
    module = cupy.RawModule(str(build.compiled("firing.cu")))
    cycles, sink = cupy.zeros(2, np.uint64), cupy.zeros(2 * 128, np.float32)
    mask = np.uint32(1 << HOOK_BY_NAME["start"].id | 1 << HOOK_BY_NAME["complete"].id)
    module.get_function("firing_2_inside")((2,), (192,), (cycles, sink, np.uint32(20), np.uint32(1), mask))
    cupy.cuda.runtime.deviceSynchronize()
    assert (sink.get() > 0).all()
    assert (cycles.get() > 0).all()
