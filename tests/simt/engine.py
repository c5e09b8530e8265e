"""The CUDA engine as a process, on the executor of this folder. Arguments as of megascope.capture.engines.cuda."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build
import driver

from megascope.capture.engines.cuda import __main__ as process
from megascope.capture.engines.cuda import kernel, libraries

BLOCKS = 3

if __name__ == "__main__":
    libraries.library = lambda: driver.cupy(BLOCKS)
    (kernel.Megakernel.__init__.__kwdefaults__ or {})["compiled"] = build.compiled
    sys.exit(process.main())
