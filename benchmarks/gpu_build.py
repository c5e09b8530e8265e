"""Compiles every build of the device code, side by side, so that nothing that is measured waits for it.

    python benchmarks/gpu_build.py [--architecture sm_90] [--vm-driver FILE]

Without an architecture, the device's own. FILE: where the VM's test driver for the device is to stand, which
tests/gpu/test_vm_on_device.py takes from MEGASCOPE_VM_DRIVER.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megascope.capture.engines.cuda.compilation import Hooks, cubin

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from test_vm_on_device import compile_driver

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, TESTS = ROOT / "docs" / "integrate", ROOT / "tests" / "gpu"

BUILDS: list[tuple[str | Path, Hooks]] = [
    *((source, hooks) for source in ("megakernel.cu", "firing.cu") for hooks in Hooks),
    ("clock.cu", Hooks.QUEUE),
    (EXAMPLES / "smooth.cu", Hooks.QUEUE),
    (EXAMPLES / "sum.cu", Hooks.DEVICE),
    *((TESTS / source, hooks) for source in ("ranks.cu", "uneven.cu") for hooks in (Hooks.QUEUE, Hooks.DEVICE)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture")
    parser.add_argument("--vm-driver", type=Path)
    args = parser.parse_args()
    architecture = args.architecture
    if not architecture:
        from megascope.capture.engines.cuda.libraries import library

        architecture = f"sm_{library().cuda.Device(0).compute_capability}"
    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:
        if args.vm_driver:
            driver = pool.submit(compile_driver, architecture, args.vm_driver)
        for path in pool.map(lambda build: cubin(build[0], architecture, build[1]), BUILDS):
            print(path.name, f"{time.monotonic() - begin:.0f} s")
        if args.vm_driver:
            driver.result()
            print(args.vm_driver.name, f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
