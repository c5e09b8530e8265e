"""What a replayed program saw and missed, as rows of `coverage`: its own counts, and what the recording had lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....store.tables import COVERAGE, HOOK_BY_NAME
from ...segment.words import Summary
from ..host.account import HOOKS, MOST_EPOCHS, PARTS, Flow
from .recording import Recording

I64 = NDArray[np.int64]
_EPOCH = HOOK_BY_NAME["epoch"].id
_PARTS = [c.name for c in COVERAGE if c.name.upper() in Summary.__members__][-PARTS:]
_MISSING = [_PARTS.index(n) for n in ("throttled", "lost", "faulted", "ring_lost", "emit_throttled")]
_ELIGIBLE, _LOST = _PARTS.index("eligible"), _PARTS.index("lost")


class Told:
    """What has been told of one program's flow.

    The recording says how many events each rank's workers fired at each hook. Those that are neither in its rows nor
    counted as lost at a worker went missing later, on the way to the disk or on it: they are told of the rank, of no
    worker, and the maps of each of its monitors may lack any of them.
    """

    def __init__(self, recording: Recording, program: int, flow: Flow, begin: int) -> None:
        self._recording, self._program, self._flow = recording, program, flow
        ranks = int(recording.rank.max()) + 1
        self._before = np.zeros((recording.workers, HOOKS, PARTS), np.int64)
        self._misplaced = np.zeros((ranks, HOOKS), np.int64)
        self._misplaced_before = self._misplaced.copy()
        self._mine = np.array([flow.mask >> h & 1 if h != _EPOCH else 0 for h in range(HOOKS)], np.int64)
        self._t = begin

    def misplaced(self, seen: I64) -> None:
        """The program has been given `seen` events so far, [workers, HOOKS]; the recording has passed the same time."""
        found = np.zeros_like(self._misplaced)
        np.add.at(found, self._recording.rank, seen + self._recording.lost)
        # Intervals are counted when they end, so that for a while more may have been seen than was told.
        gone = (self._recording.eligible - found) * self._mine
        np.maximum(self._misplaced, gone, out=self._misplaced)
        self._flow.unplaced = {r: int(n) for r, n in enumerate(self._misplaced.sum(axis=1)) if n}

    def rows(self, t: int) -> pa.RecordBatch:
        """Rows of what was added since the last call, which reached to there; the interval ends at t."""
        added = self._flow.counts - self._before
        lossy = added[:, :, _MISSING].any(axis=2)
        rows: list[tuple[int, int | None, int, int, I64]] = []
        for w, h in zip(*np.nonzero(lossy), strict=True):
            rows.append((int(self._recording.rank[w]), int(w), 1, int(h), added[w, h]))
        whole = added.any(axis=2) & ~lossy
        gone = self._misplaced - self._misplaced_before
        for rank in range(len(gone)):
            mine = whole & (self._recording.rank == rank)[:, None]
            for h in np.nonzero(mine.any(axis=0) | gone[rank] > 0)[0].tolist():
                counts: I64 = added[mine[:, h], h].sum(axis=0)
                counts[[_ELIGIBLE, _LOST]] += gone[rank, h]
                workers = int(mine[:, h].sum()) if not gone[rank, h] else int((self._recording.rank == rank).sum())
                rows.append((rank, None, workers, h, counts))
        batch = self._batch(rows, t)
        self._before, self._misplaced_before, self._t = self._flow.counts.copy(), self._misplaced.copy(), t
        return batch

    def _batch(self, rows: list[tuple[int, int | None, int, int, I64]], t: int) -> pa.RecordBatch:
        n, first = len(rows), self._t // self._recording.epoch_ns
        epochs = min(max(1, -(-t // self._recording.epoch_ns) - first), MOST_EPOCHS)
        columns: dict[str, Any] = {
            "rank": [r[0] for r in rows],
            "worker": [r[1] for r in rows],
            "workers": [r[2] for r in rows],
            "program": [self._program] * n,
            "hook": [r[3] for r in rows],
            "epoch": [first] * n,
            "epochs": [epochs] * n,
            "t_begin": [self._t] * n,
            "t_end": [t] * n,
            "closed": [t <= self._recording.closed_to] * n,
        }
        counts = np.array([r[4] for r in rows], np.int64).reshape(n, PARTS)
        columns |= {name: counts[:, i] for i, name in enumerate(_PARTS)}
        return pa.record_batch([pa.array(columns[c.name], c.arrow) for c in COVERAGE], schema=COVERAGE.schema)
