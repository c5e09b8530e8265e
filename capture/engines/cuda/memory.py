"""Host memory that the device writes to: the segment, registered; and words of the engine's own.

With unified addressing the device uses the host's addresses for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.errors import MegascopeError
from ...segment.writer import SegmentWriter
from .parameters import HOST_CHANGE, HOST_GO, HOST_STEP, HOST_STOP

_PORTABLE, _MAPPED = 1, 2
"""Flags of cudaHostRegister."""


class HostWords:
    """Pinned words that host and device share: orders to the kernel, the step it is in, when each step began."""

    def __init__(self, cupy: Any, steps: int) -> None:
        self._memory = cupy.cuda.alloc_pinned_memory((512 + steps) * 8)
        words: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64, 512 + steps)
        words[:] = 0
        self.words, self.begun = words[:512], words[512:]
        self.words_pointer, self.begun_pointer = self.words.ctypes.data, self.begun.ctypes.data

    def reset(self, *, hold: bool = False) -> None:
        """Before a launch: nothing asked, nothing begun. hold: the first step waits for `go`."""
        self.words[HOST_STOP] = self.words[HOST_STEP] = 0
        self.words[HOST_GO] = not hold
        self.words[HOST_CHANGE : HOST_CHANGE + 32] = 0
        self.begun[:] = 0

    def ask_stop(self) -> None:
        """The kernel ends after the step it is in."""
        self.words[HOST_STOP] = 1

    def go(self) -> None:
        """The first step may begin."""
        self.words[HOST_GO] = 1

    @property
    def steps_begun(self) -> int:
        return int(self.words[HOST_STEP])


class SegmentMemory:
    """A segment's mapping, registered with the driver: the device writes it, every other process needs no CUDA.

    While a kernel runs, unregistering blocks until it ends: release it after the launch's end only.
    """

    def __init__(self, cupy: Any, segment: SegmentWriter) -> None:
        self._runtime, self._bytes, lay = cupy.cuda.runtime, segment.bytes, segment.layout
        base = self._bytes.ctypes.data
        try:
            self._runtime.hostRegister(base, self._bytes.nbytes, _PORTABLE | _MAPPED)
        except self._runtime.CUDARuntimeError as e:
            why = f"the driver does not register it: {e}"
            raise MegascopeError(f"cannot use segment {segment.path}", why, "put it in /dev/shm") from e
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
        self._runtime.hostUnregister(self._bytes.ctypes.data)
