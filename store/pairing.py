"""Tasks and waits from sealed events: part by part, in bounded memory, the same however the events were cut.

    pairer = Pairer(Context.of(manifest, workers))
    for part in parts:
        derived = pairer.feed(part)
    derived = pairer.finish()

Each part gives the tasks and waits that it decides; what is still open is carried over. All tables together are a
function of the events alone, as long as no event is more than `LAG_NS` of device time late and no more than
`OPEN_MOST` rows of begun tasks are open.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import pairing_state
from .pairing_frontier import LAG_NS, Frontier
from .pairing_match import GRACE_NS
from .pairing_open import OPEN_MOST
from .pairing_rows import NONE, Events, Rows, columns_of, from_table, to_table
from .pairing_tasks import HELD_MOST, TaskCounts, TaskPairer
from .pairing_waits import WaitCounts, WaitPairer
from .tables import EVENTS, HOOK_BY_NAME, HOOKS

__all__ = ["GRACE_NS", "HELD_MOST", "LAG_NS", "OPEN_MOST", "Context", "Derived", "Pairer"]


@dataclass(frozen=True)
class Context:
    """What pairing must know beside the events.

    workers: ids of all workers, whose first event is waited for. hooks: those that were recorded: an event of another
    hook is not missed.
    """

    workers: npt.NDArray[np.int64]
    hooks: frozenset[int] = frozenset(h.id for h in HOOKS)

    @classmethod
    def of(cls, manifest: dict[str, Any], workers: pa.Table | None) -> Context:
        """From a trace's checked manifest and its table `workers`, if it has one."""
        names = manifest["engine"].get("exported_hooks")
        hooks = frozenset(HOOK_BY_NAME[n].id for n in names) if names else frozenset(h.id for h in HOOKS)
        ids: Any = workers["worker"].to_numpy() if workers is not None else []
        return cls(np.asarray(ids, np.int64), hooks)


@dataclass(frozen=True)
class Derived:
    """Rows decided by a part: `TASKS`, sorted by start (nulls last), and `WAITS`, sorted by begin (nulls last).

    frontier: all events before this time have been fed, in ns.
    """

    tasks: pa.Table
    waits: pa.Table
    frontier: int


class Pairer:
    """Pairs the events of one trace. Parts are fed in the order in which they were sealed."""

    def __init__(
        self, context: Context, *, lag_ns: int = LAG_NS, open_most: int = OPEN_MOST, held_most: int = HELD_MOST
    ) -> None:
        self.context = context
        self._frontier = Frontier(context.workers, lag_ns)
        self._tasks = TaskPairer(self._frontier, context.hooks, open_most=open_most, held_most=held_most)
        self._waits = WaitPairer(self._frontier, context.hooks)

    @property
    def counts(self) -> tuple[TaskCounts, WaitCounts]:
        """What was met so far, what is missing among it."""
        return self._tasks.counts, self._waits.counts

    @property
    def frontier(self) -> int:
        """All events before this time have been fed, in ns."""
        return self._frontier.t

    def feed(self, events: pa.Table | Rows) -> Derived:
        """One part in: rows of `EVENTS`, or columns of them by `columns_of`, each worker's in order of seq.

        Columns may be overwritten after that; nothing is kept of them. Raises ValueError for another schema.
        """
        if isinstance(events, pa.Table):
            if not events.schema.equals(EVENTS.schema):
                raise ValueError("events in another schema than EVENTS")
            events = columns_of(events.to_batches(), events.num_rows)
        columns = Events(events)
        self._frontier.see(columns.part["worker"], columns.part["t"])
        return Derived(self._tasks.feed(columns), self._waits.feed(columns), self._frontier.t)

    def finish(self) -> Derived:
        """What is left open comes out, with what is missing null."""
        self._frontier.raise_to(int(self._frontier.last.max(initial=NONE)))
        return Derived(self._tasks.finish(), self._waits.finish(), self._frontier.t)

    def state(self) -> bytes:
        """All that is carried over, so that another Pairer can `restore` it and go on with the next part."""
        workers = np.flatnonzero(self._frontier.last != NONE)
        tables = {
            "held": to_table(self._tasks.held),
            "waits": to_table(self._waits.last),
            "workers": pairing_state.workers_table(workers, self._frontier.last[workers]),
        }
        for i, chunk in enumerate(self._tasks.open.chunks()):
            tables[f"open{i}"] = to_table(chunk)
        numbers = {
            "frontier": self._frontier.t,
            "tasks": asdict(self._tasks.counts),
            "waits": asdict(self._waits.counts),
        }
        return pairing_state.dump(tables, numbers)

    def restore(self, state: bytes) -> None:
        """Go on where `state` was taken. For a new Pairer of the same context. Raises Refused for damaged bytes."""
        tables, numbers = pairing_state.load(state)
        self._tasks.held = from_table(tables["held"])
        self._waits.last = from_table(tables["waits"])
        for name, table in tables.items():
            if name.startswith("open") and table.num_rows:
                self._tasks.open.put(from_table(table))
        workers = tables["workers"]
        self._frontier.see(workers["worker"].to_numpy(), workers["t"].to_numpy())
        self._frontier.raise_to(numbers["frontier"])
        missing = {int(k): v for k, v in numbers["tasks"].pop("missing").items()}
        self._tasks.counts = TaskCounts(**numbers["tasks"], missing=missing)
        self._waits.counts = WaitCounts(**numbers["waits"])
