"""The device VM on the device: every test of it that runs on a CPU under sanitizers, answered by a GPU instead.

The driver is compiled by nvcc where that is; elsewhere MEGASCOPE_VM_DRIVER names one that was compiled for the device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
PROGRAMS = Path(__file__).resolve().parents[1] / "capture/programs"
DEVICE = PROGRAMS.parents[2] / "capture/device"
FILES = ("test_vm_conformance.py", "test_vm_differential.py", "test_vm_hostile.py")


def compile_driver(architecture: str, out: Path) -> Path:
    """Raises FileNotFoundError without nvcc."""
    command = ["nvcc", "-x", "cu", "--extended-lambda", "-std=c++17", f"-arch={architecture}", f"-I{DEVICE}"]
    subprocess.run([*command, "-o", str(out), str(PROGRAMS / "vm_driver.cpp")], check=True)
    return out


def driver(gpu: Any, folder: Path) -> Path:
    """Where the driver is."""
    given = os.environ.get("MEGASCOPE_VM_DRIVER")
    if given:
        return Path(given)
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed and MEGASCOPE_VM_DRIVER is not set")
    return compile_driver(f"sm_{gpu.cupy.cuda.Device(0).compute_capability}", folder / "vm_driver")


@pytest.mark.timeout(600)
def test_the_device_agrees_with_the_oracle(gpu: Any, tmp_path: Path) -> None:
    environment = os.environ | {"MEGASCOPE_VM_DRIVER": str(driver(gpu, tmp_path))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
    command += [str(PROGRAMS / f) for f in FILES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
