"""A query over the recorded sample of the host engine: what its host side prints, and what it exports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megascope.capture.programs import language
from megascope.capture.programs.execution import U64
from megascope.capture.programs.language.running import HostSide
from megascope.capture.programs.native import Native
from megascope.capture.programs.verifier import verify
from megascope.store.reader import Trace
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME, SIDE_TABLES

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "host.mscope"
WORKERS = 16
EPOCH_NS = 10_000_000
_EPOCH = HOOK_BY_NAME["epoch"].id


@cache
def sample_tables() -> dict[str, pa.Table]:
    """Its side tables, by name."""
    with Trace.open(SAMPLE) as trace:
        return {t.name: trace.table(t.name) for t in SIDE_TABLES}


@cache
def sample_rows() -> U64:
    """Its events as rows of the ABI, [n, 8] words, in order of time and of each worker's seq."""
    with Trace.open(SAMPLE) as trace:
        stored = pa.concat_tables([pq.read_table(p.path) for p in trace.parts("events")])
    out = np.zeros(stored.num_rows, EVENT_ROW.dtype)
    for column in EVENT_ROW:
        if column.name != "aux":
            out[column.name] = stored[column.name].to_numpy().astype(out.dtype[column.name])
    since, aux = stored["since_ns"], stored["aux"]
    known = since.is_valid().to_numpy()
    out["aux"] = np.where(known, out["t"] - since.fill_null(0).to_numpy().view(np.uint64), 0)
    out["aux"] |= aux.fill_null(0).to_numpy().view(np.uint64)
    out = out[np.lexsort((out["seq"], out["worker"], out["t"]))]
    words: U64 = out.view(np.uint64).reshape(len(out), 8)
    return words


class Session:
    """A query attached at 0 and detached after the last event, in epochs of 10 ms. text: what was printed.

    exported: of each of `sample_rows`, whether it was.
    """

    def __init__(self, text: str, feed: Mapping[int, tuple[int, int]] | None = None) -> None:
        """feed: by number of the cell, the value written to it, and before which epoch."""
        self.query = language.compile(text, sample_tables())
        program = self.query.program
        self.verdict = verify(program)
        execution = Native(self.verdict, WORKERS)
        host = HostSide(self.query)
        rows, everyone = sample_rows(), np.arange(WORKERS)
        by = np.zeros(len(rows), np.uint32)
        cuts = np.searchsorted(
            rows[:, 0], np.arange(int(rows[-1, 0]) // EPOCH_NS + 2, dtype=np.uint64) * np.uint64(EPOCH_NS)
        )
        printed = [host.begin(0)]
        kept = {a.map for a in self.query.answers if a.what == "state"}
        state = [i for i, m in enumerate(program.maps) if m.name in kept]
        names = [m.name for m in program.maps]
        for epoch, (begin, end) in enumerate(pairwise(cuts)):
            for cell, (value, at) in (feed or {}).items():
                if at == epoch:
                    execution.feed(names.index(self.query.feedback[cell].map), 0, value, epoch)
            execution.run(rows[begin:end], by[begin:end], 0)
            if program.entry(_EPOCH):
                execution.run(_closing(epoch), np.zeros(WORKERS, np.uint32), 0)
            exports = execution.close(everyone)
            held = [execution.entries(i, w) for i in state for w in range(WORKERS)]
            printed.append(host.closed(exports, (epoch + 1) * EPOCH_NS, held))
        printed.append(host.end())
        self.text, self.answers = "".join(printed), host.answers
        self.exported = by != 0


def _closing(epoch: int) -> U64:
    """The rows of hook epoch, one for each worker."""
    out = np.zeros(WORKERS, EVENT_ROW.dtype)
    out["worker"], out["hook"] = np.arange(WORKERS), _EPOCH
    out["t"], out["aux"] = (epoch + 1) * EPOCH_NS, epoch * EPOCH_NS
    words: U64 = out.view(np.uint64).reshape(WORKERS, 8)
    return words
