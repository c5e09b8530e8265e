"""Row groups of a trace's events, decoded: the columns that programs read, as the hook ABI has them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ....store.errors import Refused
from ....store.tables import EVENTS, HOOKS, RING_ROW
from ...programs.execution import HOOK_SLOTS
from .recording import Recording

Columns = dict[str, NDArray[Any]]
Place = tuple[Path | None, int]
"""A part and the number of a row group in it; None: the tail, which is one."""
HELD = 64
"""Decoded row groups that are kept; beyond, those used longest ago are decoded again when they are asked for."""
WHOLE = 4
"""Row groups of which all columns are kept: an epoch's rows stand in those of a part or two, and many epochs in one."""
TIMED = sum(1 << h.id for h in HOOKS if h.since)
_IS_TIMED = np.array([bool(TIMED >> h & 1) for h in range(HOOK_SLOTS)])
_ALWAYS = frozenset({"hook", "worker", "t"})


class Decoder:
    """Decodes row groups of one recording's events.

    wanted: columns of EVENT_ROW beside hook, worker and t. hooks: of the programs; at others `aux` may be wrong.
    """

    def __init__(self, recording: Recording, wanted: frozenset[str], hooks: int) -> None:
        self._recording = recording
        self.tail = recording.trace.tail("events")
        self._plain = sorted((wanted | _ALWAYS) - {"aux"})
        stored = list(self._plain)
        self._aux = "aux" in wanted
        if self._aux:
            stored += ["since_ns"] * bool(hooks & TIMED) + ["aux"] * bool(hooks & ~TIMED)
        self._bit = 1 << recording.population.bit
        self._stored = stored + ["by"] * (not recording.population.alone)
        self._held: OrderedDict[Place, Columns] = OrderedDict()
        self._whole: OrderedDict[Place, pa.Table] = OrderedDict()
        self._open: tuple[Path, pq.ParquetFile] | None = None

    def row_groups(self, part: Path | None) -> list[int]:
        """How many rows each row group has. Raises Refused for a part that is none."""
        if part is None:
            return [self.tail.num_rows]
        about = self._file(part).metadata
        return [about.row_group(i).num_rows for i in range(about.num_row_groups)]

    def columns(self, place: Place) -> Columns:
        """A row group's columns. Raises Refused for rows that no recording of these workers has."""
        found = self._held.pop(place, None)
        if found is None:
            found = self._decode(self._read(place, self._stored), place)
            if len(self._held) >= HELD:
                self._held.popitem(last=False)
        self._held[place] = found
        return found

    def ring_rows(self, place: Place, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """Some rows of a row group as they stood in the event ring."""
        whole = self._whole.pop(place, None)
        if whole is None:
            whole = self._read(place, list(EVENTS.names))
            if len(self._whole) >= WHOLE:
                self._whole.popitem(last=False)
        self._whole[place] = whole
        stored = whole.take(rows)
        columns: Columns = {n: _numpy(stored, n) for n in RING_ROW.names if n != "aux"}
        columns["aux"] = _aux(stored, columns["t"], columns["hook"])
        arrays = [pa.array(columns[c.name].astype(RING_ROW.dtype[c.name])) for c in RING_ROW]
        return pa.record_batch(arrays, schema=RING_ROW.schema)

    def close(self) -> None:
        self._held.clear()
        self._whole.clear()
        self._close_file()

    def _file(self, part: Path) -> pq.ParquetFile:
        if self._open is None or self._open[0] != part:
            self._close_file()
            try:
                self._open = part, pq.ParquetFile(part)
            except (OSError, pa.ArrowException) as error:
                raise self._damaged(part, str(error)) from None
        return self._open[1]

    def _close_file(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _read(self, place: Place, names: list[str]) -> pa.Table:
        part, number = place
        if part is None:
            return self.tail.select(names).combine_chunks()
        try:
            table = self._file(part).read_row_group(number, names, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(part, str(error)) from None
        if any(table.schema.field(n).type != EVENTS.schema.field(n).type for n in names):
            raise self._damaged(part, "its columns have other types")
        return table.combine_chunks()

    def _decode(self, stored: pa.Table, place: Place) -> Columns:
        columns = {name: _numpy(stored, name) for name in self._plain}
        worker, hook = columns["worker"], columns["hook"]
        if len(worker) and (worker.min() < 0 or worker.max() >= self._recording.workers):
            raise self._damaged(place[0], f"a row is of worker {worker.min()} or {worker.max()}")
        if len(hook) and (hook.min() < 0 or hook.max() >= HOOK_SLOTS):
            raise self._damaged(place[0], "a row is of a hook that the ABI does not have")
        if "by" in stored.column_names:
            columns["hook"] = np.where(_numpy(stored, "by") & self._bit, hook, np.int16(0))
        if self._aux:
            columns["aux"] = _aux(stored, columns["t"], hook)
        return columns

    def _damaged(self, part: Path | None, why: str) -> Refused:
        where = "the spool" if part is None else f"{part.parent.name}/{part.name}"
        return Refused(self._recording.what, f"{where}: {why.splitlines()[0]}", "run megascope check on it")


def _numpy(table: pa.Table, name: str) -> NDArray[Any]:
    """A column; what stands under a null may be anything."""
    column = table[name]
    if column.num_chunks != 1:
        return column.to_numpy()
    chunk: Any = column.chunk(0)
    if not chunk.null_count:
        values: NDArray[Any] = chunk.to_numpy()
        return values
    whole = np.frombuffer(chunk.buffers()[1], chunk.type.to_pandas_dtype())
    return whole[chunk.offset : chunk.offset + len(chunk)]


def _aux(stored: pa.Table, t: NDArray[np.int64], hook: NDArray[np.int16]) -> NDArray[np.int64]:
    """aux of the ABI: of a hook that carries a time that time, or 0 where it was not known."""
    if "since_ns" not in stored.column_names:
        return _numpy(stored, "aux")
    aux: NDArray[np.int64] = t - _numpy(stored, "since_ns")
    if "aux" in stored.column_names:
        aux = np.where(_IS_TIMED.take(hook), aux, _numpy(stored, "aux"))
    # Nearly always a time is missing only where there can be none, and then nobody looks at it.
    timed = int(np.bincount(hook, minlength=HOOK_SLOTS)[_IS_TIMED].sum())
    if len(t) - stored["since_ns"].null_count != timed:
        known: Any = stored["since_ns"].is_valid()
        aux[_IS_TIMED.take(hook) & ~known.to_numpy()] = 0
    return aux
