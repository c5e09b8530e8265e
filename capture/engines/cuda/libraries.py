"""The CUDA libraries, imported when an engine starts and refused in one line where they or a device are missing."""

from __future__ import annotations

from typing import Any, NamedTuple

from ....store.errors import MegascopeError


class Cuda(NamedTuple):
    """cupy for arrays, modules and streams; pycuda's driver for host memory, on cupy's primary context."""

    cupy: Any
    driver: Any
    context: Any


def libraries() -> Cuda:
    """Raises MegascopeError when cupy, pycuda or a device is missing."""
    try:
        import cupy
    except ImportError as e:
        raise _missing("cupy", e) from e
    try:
        import pycuda.driver as driver
    except ImportError as e:
        raise _missing("pycuda", e) from e
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise MegascopeError("cannot start the cuda engine", "there is no CUDA device", "use the demo engine")
        cupy.cuda.Device(0).use()
        cupy.zeros(1)  # makes the primary context
        driver.init()
        context = driver.Device(0).retain_primary_context()
    except (cupy.cuda.runtime.CUDARuntimeError, driver.Error) as e:
        raise MegascopeError("cannot start the cuda engine", str(e), "check nvidia-smi, or use the demo engine") from e
    context.push()
    return Cuda(cupy, driver, context)


def _missing(name: str, e: ImportError) -> MegascopeError:
    return MegascopeError("cannot start the cuda engine", f"it needs {name}: {e}", "pip install 'megascope[gpu]'")
