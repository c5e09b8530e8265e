"""Where the host engine's rows, records and words go; here, memory. `capture.segment.sink` has the other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....store.tables import EVENT_ROW
from ...segment.program_words import Code, Slot, SlotState
from ...segment.requests import Damaged, Request
from ...segment.words import Summary, Worker
from .account import U32, U64
from .programs import ProgramSink
from .state import I64


class Sink(ProgramSink, Protocol):
    """A monitor's far side. Methods that may have no room say so; the engine decides whether to wait."""

    @property
    def waits(self) -> bool:
        """Whether the engine waits for room (policy `wait`) instead of losing rows."""

    def room(self, monitor: int) -> int:
        """Rows that a monitor's ring can take now."""

    def write(self, monitor: int, rows: U64, by: U32) -> None:
        """[n, 8] rows of the ABI, and who emitted each, into a monitor's ring, n not above its room."""

    def lose(self, monitor: int, rows: int) -> None:
        """That many rows found no room."""

    def keep(self, monitor: int, records: I64) -> bool:
        """Summary records of one cut, all or (False: no room) none."""

    def say(self, table: str, rows: Iterable[tuple[int | str, ...]]) -> None:
        """Rows of an engine table."""

    def show(self, worker: I64, t: int, step: int, epoch: int, *, waits: bool = False) -> None:
        """Publish the words of all workers, [workers, Worker.WORDS], and a sign of life. waits: for room, now."""

    def wanted(self) -> tuple[int, int] | None:
        """(mask, commit byte) when the hooks to record have been asked for anew."""

    def latched(self, mask: int, commit: int) -> None:
        """The mask is in force."""

    def feedback(self) -> tuple[int, list[tuple[int, int, int, int, int]]] | None:
        """(commit byte, [program, map, index, value, epoch]) when there is feedback that was not given before."""

    def fed(self, commit: int) -> None:
        """The feedback is in force."""

    @property
    def stopped(self) -> bool:
        """An orderly end is asked for."""


class MemorySink:
    """Keeps everything: for tests, and for whoever wants the events of a run as one array.

    mask: hooks to record. keep_rows False: rows are counted by the engine but not kept. requests: (virtual time, what
    is asked for then), in order; `answers` has what became of them.
    """

    waits = True
    stopped = False
    map_bytes = 1 << 20

    def __init__(
        self, *, mask: int = 0x1FFE, keep_rows: bool = True, requests: Sequence[tuple[int, Request]] = ()
    ) -> None:
        self._mask: int | None = mask
        self._t = 0
        self._requests = deque(requests)
        self._by: list[U32] = []
        self.answers: list[tuple[int, Code, int, str]] = []
        self.slots: dict[int, tuple[SlotState, dict[Slot, int]]] = {}
        self.maps: list[bytes] = []
        """records of map rings"""
        self._keep = keep_rows
        self._rows: list[U64] = []
        self._records: list[I64] = []
        self.told: dict[str, list[tuple[int | str, ...]]] = defaultdict(list)
        self.workers: I64 = np.empty((0, Worker.WORDS), np.int64)

    def room(self, monitor: int) -> int:  # noqa: ARG002
        return 1 << 62

    def write(self, monitor: int, rows: U64, by: U32) -> None:  # noqa: ARG002
        if self._keep:
            self._rows.append(rows.copy())
            self._by.append(by.copy())

    def lose(self, monitor: int, rows: int) -> None:
        raise AssertionError(f"monitor {monitor} lost {rows} rows in memory")

    def keep(self, monitor: int, records: I64) -> bool:  # noqa: ARG002
        self._records.append(records)
        return True

    def say(self, table: str, rows: Iterable[tuple[int | str, ...]]) -> None:
        self.told[table] += rows

    def show(self, worker: I64, t: int, step: int, epoch: int, *, waits: bool = False) -> None:  # noqa: ARG002
        self.workers, self._t = worker.copy(), t

    def keep_map(self, monitor: int, record: bytes) -> bool:  # noqa: ARG002
        self.maps.append(record)
        return True

    def next_request(self) -> Request | Damaged | None:
        return self._requests.popleft()[1] if self._requests and self._requests[0][0] <= self._t else None

    def answer(self, number: int, code: Code, program: int, text: str, *, arena_used: int) -> None:  # noqa: ARG002
        self.answers.append((number, code, program, text))

    def tell(self, slot: int, state: SlotState, words: dict[Slot, int]) -> None:
        self.slots[slot] = state, self.slots.get(slot, (state, {}))[1] | words

    def feedback(self) -> tuple[int, list[tuple[int, int, int, int, int]]] | None:
        return None

    def fed(self, commit: int) -> None:
        pass

    def wanted(self) -> tuple[int, int] | None:
        mask, self._mask = self._mask, None
        return None if mask is None else (mask, 0)

    def latched(self, mask: int, commit: int) -> None:
        pass

    @property
    def events(self) -> NDArray[np.void]:
        """All rows as records of the ABI's event row: by monitor's passes, each worker's in order."""
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, 8), np.uint64)
        return rows.view(EVENT_ROW.dtype).reshape(-1)

    @property
    def by(self) -> U32:
        """Who emitted each of the `events`."""
        return np.concatenate(self._by) if self._by else np.empty(0, np.uint32)

    @property
    def records(self) -> I64:
        """[records, 16] interval and coverage records, words by `Summary`."""
        return np.concatenate(self._records) if self._records else np.empty((0, Summary.WORDS), np.int64)
