"""The same run under several interleavings, and with monitors that get few turns: whatever is lost is accounted for."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import build
import driver
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from device_runs import check_identities

from megascope.capture.engines.cuda.engine import CudaEngine
from megascope.capture.engines.cuda.kernel import Megakernel
from megascope.capture.engines.cuda.settings import Settings

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
