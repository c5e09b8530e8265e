"""Readings of both clocks: the host pings, the device answers with its time, the best round trip of a burst counts."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from ....store.errors import MegascopeError
from .memory import HostWords
from .parameters import HOST_PING, HOST_PING_ECHO, HOST_PING_TIME

TICK_NS = 32
"""Step of %globaltimer on Hopper."""
PINGS = 200
"""Of a reading while nothing else runs on the device."""
PATIENCE_NS = 500_000_000


class Fit(NamedTuple):
    """At CLOCK_REALTIME `host_ns` the device's clock stood at `device_ns`, give or take `error_ns`."""

    host_ns: int
    device_ns: int
    error_ns: int


class Pinger:
    """Pings through the engine's own host words; whoever runs on the device answers."""

    def __init__(self, host: HostWords) -> None:
        self._words = host.words
        self._count = 0

    @property
    def next(self) -> int:
        """Number of the next ping."""
        return self._count + 1

    def burst(self, pings: int, patience_ns: int = 5_000_000) -> Fit | None:
        """The best of `pings` round trips; None when the device does not answer within patience_ns."""
        best: Fit | None = None
        for _ in range(pings):
            self._count += 1
            begin = time.time_ns()
            self._words[HOST_PING] = self._count
            while self._words[HOST_PING_ECHO] != self._count:
                if time.time_ns() - begin > patience_ns:
                    return best
            end = time.time_ns()
            error = (end - begin + 1) // 2 + TICK_NS
            if best is None or error < best.error_ns:
                best = Fit((begin + end) // 2, int(self._words[HOST_PING_TIME]), error)
        return best


class LoneClock:
    """Readings while no kernel runs that answers: one of its own does. module: clock.cu, loaded."""

    def __init__(self, module: Any, host: HostWords) -> None:
        self._function = module.get_function("answer_pings")
        self._words = np.uint64(host.words_pointer + 8 * HOST_PING)

    def read(self, stream: Any, pinger: Pinger) -> Fit:
        """Raises MegascopeError when the device does not answer."""
        limit = np.uint64(2 * PATIENCE_NS)
        with stream:
            self._function((1,), (1,), (self._words, np.uint64(pinger.next), np.uint64(PINGS), limit))
        reading = pinger.burst(PINGS, PATIENCE_NS)
        stream.synchronize()
        if reading is None:
            raise MegascopeError("cannot read the device's clock", "it did not answer within half a second")
        return reading
