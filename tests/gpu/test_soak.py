"""Programs come and go while the kernel runs: nothing is lost that is not counted, and nothing computed is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak
from device_runs import engine, unharmed

from megascope.capture.segment.words import Worker

SOAK = Path(soak.__file__)


def soaked(
    cuda: Any, path: Path, tmp_path: Path, spec: str, seconds: float, period_ms: float, least: int, events: int = 0
) -> dict[str, int]:
    """What a run under programs that are swapped came to. Its logits and tokens are those of one without hooks."""
    with engine(cuda, path, spec, record=False, keep_every=32) as e:
        outs = [tmp_path / "swap.npz", tmp_path / "rows.npz"]
        arguments = (["swap", path, outs[0], seconds, period_ms, least, events], ["rows", path, outs[1]])
        beside = [subprocess.Popen([sys.executable, SOAK, *map(str, a)]) for a in arguments]
        try:
            assert e.run() == "stopped"
            assert [p.wait(300) for p in beside] == [0, 0]
        finally:
            for p in beside:
                p.kill()
        words = e.segment.worker.astype(np.int64)
        with np.load(outs[0]) as swapped, np.load(outs[1]) as told:
            came = soak.judge(
                dict(swapped), dict(told), e.segment.layout.workers,
                words[:, Worker.FIRED], words[:, Worker.LOST], words[:, Worker.DEQUEUED],
            )  # fmt: skip
            print(came, "steps", e.counts()["steps"])
            print("attached, from asking to being told:", spread(swapped["took_ms"]))
        print("changed, from publication to the last acknowledgement:", spread(np.array(e.programs.took_ns) / 1e6))
        unharmed(e)
    return came


def spread(ms: Any) -> str:
    return f"{len(ms)} times, ms: " + ", ".join(f"p{q} {np.percentile(ms, q):.3f}" for q in (50, 90, 99, 100))


@pytest.mark.parametrize("transport", ["warp", pytest.param("block", marks=pytest.mark.heavy)])
def test_swapped_while_it_runs(cuda: Any, segment_path: Path, tmp_path: Path, transport: str) -> None:
    seconds, period_ms, least = (1, 100, 4) if cuda.simulated else (2, 10, 100)
    came = soaked(cuda, segment_path, tmp_path, f"{cuda.long},transport={transport}", seconds, period_ms, least)
    assert came["programs"] >= least
    assert came["programs equal to raw rows"] >= 1


@pytest.mark.slow
@pytest.mark.gpu
def test_a_thousand_million_events(gpu: Any, segment_path: Path, tmp_path: Path) -> None:
    spec = (
        "layers=4,d_model=512,heads=16,kv_heads=4,head_dim=32,ffn=2048,vocab=4096,slots=8,context=128,out_tile=8,"
        "steps=400000,seconds=200,ring_mb=2000,summary_rows=4080,epoch_ms=20,arena_mb=4000"
    )
    came = soaked(gpu, segment_path, tmp_path, spec, 20, 10, 1500, 1_000_000_000)
    assert came["events"] >= 1_000_000_000
    assert came["programs equal to raw rows"] >= 100
