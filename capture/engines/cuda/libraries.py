"""The CUDA libraries, imported when an engine starts and refused in one line where they or a device are missing."""

from __future__ import annotations

import ctypes
from typing import Any

from ....store.errors import MegascopeError

_WHAT = "cannot start the cuda engine"


def library() -> Any:
    """cupy, with device 0 in use.

    Raises MegascopeError when cupy or a device is missing, or the device cannot address host memory as the host does.
    """
    try:
        import cupy
    except ImportError as e:
        raise MegascopeError(_WHAT, f"the cuda engine needs cupy: {e}", "pip install 'megascope[gpu]'") from e
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise MegascopeError(_WHAT, "there is no CUDA device", "use the demo engine")
        device = cupy.cuda.Device(0)
        device.use()
        addresses_alike = device.attributes["CanUseHostPointerForRegisteredMem"]
    except cupy.cuda.runtime.CUDARuntimeError as e:
        raise MegascopeError(_WHAT, str(e), "check nvidia-smi, or use the demo engine") from e
    if not addresses_alike:
        raise MegascopeError(_WHAT, "the device cannot use the host's addresses for registered memory")
    if int(device.compute_capability) < 90:
        raise MegascopeError(_WHAT, f"the device is of compute capability {device.compute_capability}, below 9.0")
    return cupy


def load_kernels(module: Any) -> None:
    """Load all kernels of a module now, before any of them runs for long.

    CUDA loads a kernel when it is first asked for, and that may wait for those that run: so one that is asked for while
    monitor blocks run would not begin before they end.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count, enumerate_, load = driver.cuModuleGetFunctionCount, driver.cuModuleEnumerateFunctions, driver.cuFuncLoad
    except (OSError, AttributeError):
        return  # a driver older than 12.4, or none at all (a simulated device): who launches asks for kernels early
    handle, n = ctypes.c_void_p(module.module.ptr), ctypes.c_uint()
    if count(ctypes.byref(n), handle):
        return
    kernels = (ctypes.c_void_p * n.value)()
    if enumerate_(kernels, n, handle) == 0:
        for kernel in kernels:
            load(ctypes.c_void_p(kernel))
