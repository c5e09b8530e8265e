"""Host memory that the device writes to: the segment, registered; and a page of the engine's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...segment.writer import SegmentWriter
from .libraries import Cuda
from .parameters import HOST_STEP, HOST_STOP


class HostWords:
    """Pinned words that host and device share: orders to the kernel, the step it is in, when each step began."""

    def __init__(self, cuda: Cuda, steps: int) -> None:
        flags = cuda.driver.host_alloc_flags.DEVICEMAP
        self.words: NDArray[np.uint64] = cuda.driver.pagelocked_zeros(512, np.uint64, mem_flags=flags)
        self.begun: NDArray[np.uint64] = cuda.driver.pagelocked_zeros(steps, np.uint64, mem_flags=flags)
        self.words_pointer = _pointer(self.words)
        self.begun_pointer = _pointer(self.begun)

    def reset(self) -> None:
        """Before a launch: nothing asked, nothing begun."""
        self.words[HOST_STOP] = self.words[HOST_STEP] = 0
        self.begun[:] = 0

    def ask_stop(self) -> None:
        """The kernel ends after the step it is in."""
        self.words[HOST_STOP] = 1

    @property
    def steps_begun(self) -> int:
        return int(self.words[HOST_STEP])


class SegmentMemory:
    """A segment's mapping, registered with the driver: the device writes it, every other process needs no CUDA.

    While a kernel runs, unregistering blocks until it ends: release it after the launch's end only.
    """

    def __init__(self, cuda: Cuda, segment: SegmentWriter) -> None:
        flags = cuda.driver.mem_host_register_flags
        self._registered = cuda.driver.register_host_memory(segment.bytes, flags=flags.DEVICEMAP | flags.PORTABLE)
        base = _pointer(self._registered)
        lay = segment.layout
        self.parameters = {
            "cursors": base + lay.cursor_offset,
            "workers": base + lay.worker_offset,
            "summaries": base + lay.summary_offset,
            "rings": base + lay.ring_offset,
            "control": base + lay.control_offset,
            "epoch_ns": lay.epoch_ns,
            "block_bytes": lay.block_bytes,
            "ring_blocks": lay.blocks,
            "block_rows": lay.block_rows,
            "summary_rows": lay.summary_rows,
            "monitors": lay.monitors,
            "policy": lay.policy,
            "exported": lay.exported,
        }

    def release(self) -> None:
        self._registered.base.unregister()


def _pointer(array: Any) -> int:
    """The device's address of mapped host memory."""
    return int(array.base.get_device_pointer())
