"""The device VM through nvcc: it compiles without a warning, spills nothing, and has registers to spare."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from vm_process import DEVICE, HERE

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
MEGAKERNEL_REGISTERS = 168
"""What it takes with the hooks compiled out: a monitor beside it is free up to there."""


def test_it_compiles_and_spills_nothing(tmp_path: Path) -> None:
    command = [str(NVCC), "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", f"-I{DEVICE}"]
    command += ["-o", str(tmp_path / "out.cubin"), str(HERE / "vm_kernel.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(frames) == 3
    assert set(frames) == {("0", "0", "0")}, done.stderr
    assert max(map(int, re.findall(r"Used (\d+) registers", done.stderr))) <= MEGAKERNEL_REGISTERS


def test_the_driver_compiles_for_the_device(tmp_path: Path) -> None:
    """The same requests, answered by a device: see tests/gpu/test_vm_on_device.py."""
    command = [str(NVCC), "-x", "cu", "--extended-lambda", "-std=c++17", "-arch=sm_90", f"-I{DEVICE}"]
    command += ["-o", str(tmp_path / "vm_driver"), str(HERE / "vm_driver.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
