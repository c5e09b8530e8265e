"""What the engine uses of cupy, over the executor of this folder: its host side runs against it unchanged.

Memory is numpy's; the device's addresses are the process's. A launch is run by a thread of its own, or by the one that
runs the module's launches already; its stream's next launch waits for it. A launch that failed says why at the next
`done` or `synchronize`, as a CUDA context would: for ever.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 512
SHARED_MEMORY = 228 << 10
"""of a multiprocessor, the most that it can be"""
DIVISIONS = [kb << 10 for kb in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)]
"""of what shared memory and first-level cache have together: how much the former may be"""
RESERVED = 1 << 10
"""of it, by the system for each block"""
_streams = threading.local()


class CUDARuntimeError(RuntimeError):
    """A launch failed."""


class _Pointer:
    def __init__(self, array: Array) -> None:
        self._bytes = np.asarray(array).reshape(-1).view(np.uint8)
        self.ptr = int(self._bytes.ctypes.data)

    def memset_async(self, value: int, nbytes: int, stream: Any = None) -> None:
        del stream  # nothing that runs touches what is set
        self._bytes[:nbytes] = value


class Array(np.ndarray[Any, Any]):
    """An array in the device's memory."""

    @property
    def data(self) -> Any:
        return _Pointer(self)

    def get(self) -> NDArray[Any]:
        return np.array(self, subok=False)

    def set(self, values: NDArray[Any], stream: Any = None) -> None:
        del stream
        self[...] = values


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    whole = np.zeros(nbytes + ALIGNMENT, np.uint8)
    return whole[-whole.ctypes.data % ALIGNMENT :][:nbytes]


def zeros(shape: int | tuple[int, ...], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    flat = _aligned(int(np.prod(shape)) * kind.itemsize).view(kind)
    return flat.reshape(shape).view(Array)


def asarray(values: NDArray[Any]) -> Array:
    out = zeros(values.shape, values.dtype)
    out[...] = values
    return out


def ndarray(shape: tuple[int, ...], dtype: Any, address: int) -> Array:
    """Over memory that is there, as a module's global."""
    kind = np.dtype(dtype)
    memory = (ctypes.c_uint8 * (int(np.prod(shape)) * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, kind).reshape(shape).view(Array)


class _Generator:
    def __init__(self, seed: int) -> None:
        self._of = np.random.default_rng(seed)

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return asarray(self._of.standard_normal(shape, dtype))


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        del non_blocking
        self._launches: list[Launch] = []

    def __enter__(self) -> Stream:
        _streams.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _streams.current = None

    @property
    def done(self) -> bool:
        return all(launch.over for launch in self._launches)

    def synchronize(self) -> None:
        for launch in self._launches:
            launch.wait()

    def add(self, launch: Launch) -> None:
        self._launches.append(launch)

    @property
    def last(self) -> Launch | None:
        return self._launches[-1] if self._launches else None


class Launch:
    """A grid that runs, or is to run when `before` is over.

    room: bytes of shared memory that its blocks leave on their multiprocessors while they are there.
    """

    def __init__(self, module: RawModule, call: Any, before: Launch | None, name: str = "", room: int = 0) -> None:
        self._module, self._call, self._before = module, call, before
        self.name, self.room = name, room
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed = False
        self._handle = call() if before is None or before.over else None
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._before:
                self._before._ended.wait()
            handle = self._handle or self._call()
            self._failed = not self._module.library.simt_wait(handle)
            self._module.library.simt_forget(handle)
        finally:
            self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def over(self) -> bool:
        if self._ended.is_set() and self._failed:
            raise CUDARuntimeError(self._module.report)
        return self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait()
        assert self.over


class Slow(NamedTuple):
    """One warp of each of a kernel's blocks that gets one turn in `times`."""

    kernel: str
    warp: int
    times: int


class RawModule:
    """A copy of a compiled source of its own, with its globals and its executor."""

    def __init__(self, path: str, *, seed: int = 1, slow: Slow | None = None) -> None:
        # The loader gives one copy to all who ask for one file.
        with tempfile.NamedTemporaryFile(suffix=".so") as copy:
            shutil.copyfile(path, copy.name)
            self.library = ctypes.CDLL(copy.name)
        self.path = Path(path)
        lib = self.library
        lib.simt_launch.restype = ctypes.c_void_p
        lib.simt_launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_uint32] * 3, ctypes.c_void_p]
        lib.simt_report.restype = ctypes.c_char_p
        for name in ("simt_wait", "simt_forget"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
        lib.simt_seed.argtypes = [ctypes.c_uint64]
        lib.simt_seed(seed)
        lib.simt_slow.argtypes = [ctypes.c_char_p, *[ctypes.c_uint32] * 2]
        if slow:
            lib.simt_slow(slow.kernel.encode(), slow.warp, slow.times)

    @property
    def report(self) -> str:
        """What went wrong, with the calls that led there where binutils are at hand."""
        text = self.library.simt_report().decode(errors="replace")
        return re.sub(r"\[(0x[0-9a-f]+)\]", lambda found: f"[{self._calls(found[1])}]", text)

    def _calls(self, address: str) -> str:
        tool = shutil.which("addr2line")
        if tool is None:
            return address
        command = [tool, "-Cfpis", "-e", str(self.path), address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [re.sub(r"^ ?\(inlined by\) ", "", line) for line in done.stdout.splitlines()]
        return " < ".join(lines) or address

    def get_global(self, name: str) -> int:
        return ctypes.addressof(ctypes.c_uint8.in_dll(self.library, name))

    def get_function(self, name: str) -> Function:
        return Function(self, name)


class Function:
    num_regs = 0
    local_size_bytes = 0
    shared_size_bytes = 0

    def __init__(self, module: RawModule, name: str) -> None:
        self._module, self._name = module, name
        self._address = ctypes.cast(getattr(module.library, name), ctypes.c_void_p).value
        self.max_dynamic_shared_size_bytes = 48 << 10
        self.preferred_shared_memory_carveout = -1

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0) -> None:
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise CUDARuntimeError(f"{shared_mem} bytes of shared memory are more than were asked for")
        words = np.zeros(6, np.uint64)
        for i, value in enumerate(args):
            words[i] = value.data.ptr if isinstance(value, Array) else int(value)
        lib, blocks, threads = self._module.library, int(grid[0]), int(block[0])

        def call() -> Any:
            return lib.simt_launch(
                self._address, self._name.encode(), blocks, threads, shared_mem, words.ctypes.data_as(ctypes.c_void_p)
            )

        stream = getattr(_streams, "current", None) or _default
        wants = self.shared_size_bytes + shared_mem + RESERVED
        for launch in _launches:
            if launch is not stream.last and launch.room < wants and not launch.ended:
                raise CUDARuntimeError(f"{self._name} would not begin before {launch.name} has ended")
        launch = Launch(self._module, call, stream.last, self._name, self._room(wants))
        _launches[:] = [one for one in _launches if not one.ended] + [launch]
        stream.add(launch)

    def _room(self, wants: int) -> int:
        preferred = max(self.preferred_shared_memory_carveout, 0) * SHARED_MEMORY // 100
        return next(division for division in DIVISIONS if division >= max(preferred, wants)) - wants


_default = Stream()
_launches: list[Launch] = []


def cupy(blocks: int = 3, *, seed: int = 1, slow: Slow | None = None) -> Any:
    """An object to use as the cupy module: a device of so many multiprocessors. seed: of its interleavings."""
    device = SimpleNamespace(
        compute_capability="simt",
        attributes={
            "MultiProcessorCount": blocks,
            "CanUseHostPointerForRegisteredMem": 1,
            "MaxSharedMemoryPerMultiprocessor": SHARED_MEMORY,
        },
        use=lambda: None,
    )
    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: 1,
        hostRegister=lambda _address, _nbytes, _flags: None,
        hostUnregister=lambda _address: None,
        deviceSynchronize=lambda: _default.synchronize(),
    )
    return SimpleNamespace(
        cuda=SimpleNamespace(
            Device=lambda _number: device,
            Stream=Stream,
            alloc_pinned_memory=lambda nbytes: _aligned(-(-nbytes // ALIGNMENT) * ALIGNMENT),
            runtime=runtime,
        ),
        RawModule=lambda path: RawModule(path, seed=seed, slow=slow),
        random=SimpleNamespace(default_rng=_Generator),
        zeros=zeros,
        asarray=asarray,
        ascontiguousarray=asarray,
        concatenate=lambda parts, axis: asarray(np.concatenate(parts, axis)),
        ndarray=ndarray,
    )
