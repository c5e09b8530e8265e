"""Compiles every build of the device code, side by side, so that nothing that is measured waits for it.

python benchmarks/gpu_build.py [ARCHITECTURE]      sm_90, say; without one, the device's own
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megascope.capture.engines.cuda.compilation import Hooks, cubin

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
    if len(sys.argv) > 1:
        architecture = sys.argv[1]
    else:
        from megascope.capture.engines.cuda.libraries import library

        architecture = f"sm_{library().cuda.Device(0).compute_capability}"
    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:
        for path in pool.map(lambda build: cubin(build[0], architecture, build[1]), BUILDS):
            print(path.name, f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
