"""What monitors need beside the segment: device memory for programs and maps, host memory for exports and orders."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]


class MonitorWord(IntEnum):
    """Words between a monitor and this process, as in capture/device/programs.cuh."""

    HEAD = 0
    CHANGE = 1
    ENDED = 2
    SEEN = 8
    WORDS = 16


class ChangeWord(IntEnum):
    """Words of a change that the device is asked for, as in capture/device/programs.cuh."""

    NUMBER = 0
    LEAVES = 1
    PLACE = 2
    BIT = 3
    FROM = 4
    WORDS = 5
    CODE = 6
    ARENA = 7
    ARENA_WORDS = 8
    INSTRUCTIONS = 9
    ROWS = 10
    HOOKS = 11
    PROGRAM = 12
    CELLS = 13
    COUNT = 14
    LENGTH = 15
    REFUSED = 16


CELL = np.dtype(
    [("place", "<u4"), ("map", "<u4"), ("index", "<u4"), ("reserved", "<u4"), ("value", "<u8"), ("epoch", "<u8")]
)
"""`struct Cell`."""
CELLS = 80
CODE_BYTES = 1 << 17
"""Of a program's words, at most."""


class Sizes(NamedTuple):
    """`segment_sizes` of megascope.cuh, in bytes; `places` and `watched` are counts."""

    queues: int
    programs: int
    running: int
    book: int
    deep: int
    exports: int
    places: int
    watched: int
    compute_mask: int
    """in a block's queues: where the mask is by which the worker fires"""
    scheduler_mask: int

    @classmethod
    def of(cls, cupy: Any, module: Any) -> Sizes:
        """Of a loaded build that has monitors."""
        words = cupy.ndarray((len(cls._fields),), np.uint32, module.get_global("segment_sizes"))
        return cls(*words.get().tolist())


class MonitorMemory:
    """Allocated before a launch. blocks, workers, ranks: of the kernel. arena: bytes for the maps of all programs.

    words: [monitors, MonitorWord.WORDS], and exports: [monitors, words of a buffer], both shared with the device.
    """

    def __init__(
        self, cupy: Any, sizes: Sizes, monitors: int, blocks: int, workers: int, ranks: int, arena: int
    ) -> None:
        self.sizes, self.monitors, self._workers = sizes, monitors, workers
        self._arrays = {
            "hook_queues": cupy.zeros(blocks * sizes.queues, np.uint8),
            "programs": cupy.zeros(sizes.programs, np.uint8),
            "running": cupy.zeros(monitors * sizes.places * sizes.running, np.uint8),
            "books": cupy.zeros(sizes.places * (workers + ranks) * sizes.book, np.uint8),
            "deep": cupy.zeros(monitors * sizes.deep, np.uint8),
            "progress": cupy.zeros(monitors * 128, np.uint8),
        }
        self.code = cupy.zeros(sizes.places * CODE_BYTES, np.uint8)
        self.arena = cupy.zeros(max(arena, 8), np.uint8)
        self._pinned = cupy.cuda.alloc_pinned_memory(
            monitors * (MonitorWord.WORDS * 8 + sizes.exports) + CODE_BYTES + 4096
        )
        whole: U64 = np.frombuffer(self._pinned, np.uint64)
        n = monitors * MonitorWord.WORDS
        self.words = whole[:n].reshape(monitors, MonitorWord.WORDS)
        self.exports = whole[n : n + monitors * sizes.exports // 8].reshape(monitors, -1)
        rest = whole[n + monitors * sizes.exports // 8 :]
        self.image = rest[: CODE_BYTES // 8]
        self.cells = rest[CODE_BYTES // 8 :][: CELLS * CELL.itemsize // 8].view(CELL)

    @property
    def parameters(self) -> dict[str, int]:
        """Of `struct Segment`."""
        out = {name: int(array.data.ptr) for name, array in self._arrays.items()}
        return out | {"exports": self.exports.ctypes.data, "export_words": self.words.ctypes.data}

    def over(self, change: int) -> list[int] | None:
        """Workers that have left before the change of that number; None while a monitor has not gone over to it."""
        ended = self.words[:, MonitorWord.ENDED].copy()  # read first: after it the other word is the last
        other = self.words[:, MonitorWord.CHANGE] != change
        if (other & (ended == 0)).any():
            return None
        return [w for m in np.nonzero(other)[0].tolist() for w in range(m, self._workers, self.monitors)]

    def taken(self, most: int | None = None) -> list[U64]:
        """Copies of the buffers that monitors have handed over since the last call, which are theirs again."""
        turn = self.words[:, MonitorWord.HEAD] >> np.uint64(32)
        out = []
        for monitor in np.nonzero(turn != self.words[:, MonitorWord.SEEN])[0][:most].tolist():
            out.append(self.exports[monitor, : int(self.words[monitor, MonitorWord.HEAD]) & 0xFFFF_FFFF].copy())
            self.words[monitor, MonitorWord.SEEN] = turn[monitor]
        return out

    def reset(self, stream: Any, mask: int) -> None:
        """Before a launch: nothing attached, nothing exported. mask: hooks to record from the first event on.

        Queues in device memory are told of it here, since workers may be faster than the monitors that would tell them.
        """
        for array in self._arrays.values():
            array.data.memset_async(0, array.nbytes, stream)
        queues = self._arrays["hook_queues"].reshape(-1, self.sizes.queues).view(np.uint32)
        with stream:
            for at in (self.sizes.compute_mask, self.sizes.scheduler_mask):
                queues[:, at // 4] = mask
        self.words[:] = 0


BLOCK_RESERVED = 1024
"""bytes of shared memory that the system takes for each block"""


def launch_monitors(cupy: Any, module: Any, stream: Any, monitors: int, shared_bytes: int | None) -> None:
    """Launch monitor blocks, before the kernel that they watch. shared_bytes: of a block of that, None: not known.

    A multiprocessor is divided into shared memory and first-level cache when its first block comes. If what is left
    beside the monitor's is too little for one of the kernel's, that one cannot begin before the monitor has ended,
    which waits for the kernel. Where it is not known how much that takes, all is shared memory.
    """
    kernel = module.get_function("monitors")
    part = 100
    if shared_bytes is not None:
        whole = cupy.cuda.Device(0).attributes["MaxSharedMemoryPerMultiprocessor"]
        part = min(-(-100 * (shared_bytes + kernel.shared_size_bytes + 2 * BLOCK_RESERVED) // whole), 100)
    kernel.preferred_shared_memory_carveout = part
    with stream:
        kernel((monitors,), (32,), ())
