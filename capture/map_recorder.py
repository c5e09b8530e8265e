"""Records what the maps of an engine's programs hold, on a thread, for a screen that has no recording to follow."""

from __future__ import annotations

import threading
from pathlib import Path

from ..store.errors import MegascopeError
from .segment.reader import SegmentReader
from .session import Session


class MapRecorder:
    """A recording without raw events: coverage, what programs' maps hold, and the rows that they emit.

    The recording is temporary: it goes with the screen. It is the engine's drainer from construction to `stop`, so
    nobody else can record meanwhile. Raises MegascopeError when somebody does, Refused for a segment or a place that
    cannot be.
    """

    def __init__(self, path: Path, out: Path) -> None:
        self.out = out
        self.problem = ""
        """why it ended before it was stopped, in one line"""
        self._stop = threading.Event()
        self._segment = SegmentReader.open(path, write=True)
        try:
            self._session = Session(self._segment, out, raw=False, temporary=True)
        except BaseException:
            self._segment.close()
            raise
        self._thread = threading.Thread(target=self._run, name="map-recorder", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float = 10.0) -> bool:
        """End in order: the trace is sealed. Whether that was done within so many seconds."""
        self._stop.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._session.run(stopped=self._stop.is_set)
        except MegascopeError as e:
            self.problem = str(e)
        finally:
            self._session.release()
            self._segment.close()
