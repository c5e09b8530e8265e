"""The devices of these tests: a GPU, and one that a CPU stands for (tests/simt)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from megascope.capture.engines.cuda.compilation import cubin
from megascope.capture.engines.cuda.kernel import Compiled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simt"))
import build
import driver

SERVED = "prompt_tokens=12,max_tokens=12,preempt=0.05,cancel=0.02"
BLOCKS = 3
"""of a device that a CPU stands for"""


@dataclass(frozen=True)
class Device:
    """A device and how much it gets to do. small, long: settings of a short run, and of one that is ended from outside.

    epoch_ms: many epochs in a short run. many: steps that are enough to fill small rings.
    slow_ns: what some tasks take longer than, and others not.
    """

    cupy: Any
    compiled: Compiled
    small: str
    long: str
    epoch_ms: int
    many: int
    slow_ns: int
    simulated: bool


@cache
def the_gpu() -> Device:
    from megascope.capture.engines.cuda.libraries import library

    model = (
        "layers=2,d_model=256,heads=8,kv_heads=2,head_dim=32,ffn=512,vocab=1024,slots=4,context=128,"
        f"qkv_tile=16,out_tile=16,ffn_tile=32,vocab_tile=32,{SERVED},steps=60,seconds=20"
    )
    long = "steps=150000,seconds=40,ring_mb=400,summary_rows=4080,epoch_ms=20,arena_mb=2000"
    return Device(library(), cubin, model, long, 1, 200, 8_000, simulated=False)


def rig(seed: int) -> Device:
    model = (
        "layers=2,d_model=32,heads=2,kv_heads=1,head_dim=16,ffn=32,vocab=32,slots=3,context=32,"
        f"qkv_tile=32,out_tile=16,ffn_tile=16,vocab_tile=16,{SERVED},steps=12,seconds=100,"
        "ring_mb=16,arena_mb=16,monitor_blocks=2,summary_rows=4080"
    )
    long = "steps=3000,ring_mb=64,summary_rows=4080,epoch_ms=20,arena_mb=16"
    return Device(driver.cupy(BLOCKS, seed=seed), build.compiled, model, long, 50, 30, 1_000_000, simulated=True)
