"""The trace that a replay writes: a trace of the same engine, in which other programs were attached."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....store.errors import Refused
from ....store.tables import COMPILER_TABLES, COVERAGE, ENGINE_TABLES, EVENTS, LOSS, SINCE_MAX
from ....store.trace import Trace, TraceWriter
from ...map_tables import MapTables
from ...programs.program import Program
from ...segment import map_ring
from ...segment.exports import Record
from .recording import Recording, rows_of, same_place

_COPIED = ("intervals", "loss", "now")


class Output:
    """A trace at `path`. programs: by id; rows: their rows of the table `programs`.

    Raises Refused for a path that is taken (unless `force`) and for the recording's own.
    """

    def __init__(
        self,
        recording: Recording,
        path: Path,
        programs: Mapping[int, Program],
        rows: Sequence[Mapping[str, Any]],
        *,
        force: bool = False,
    ) -> None:
        if same_place(recording.path, path):
            raise Refused(f"cannot create {path}", "it is the trace that is replayed", "name another")
        self._programs, self._maps = programs, MapTables()
        trace = recording.trace
        tables = {t.name: trace.table(t.name) for t in COMPILER_TABLES if t.name in trace.manifest["tables"]}
        self.writer = TraceWriter.create(path, self._about(recording, rows), tables, force=force)
        try:
            for table in ENGINE_TABLES:
                for batch in trace.table(table.name).combine_chunks().to_batches():
                    self.writer.upsert(table.name, batch)
            for name in _COPIED:
                for batch in _of_the_engine(name, rows_of(trace, name)).to_batches():
                    self.writer.append(name, batch)
        except BaseException:
            self.abandon()
            raise

    @staticmethod
    def _about(recording: Recording, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        source = recording.trace.manifest
        of = {
            "trace": source["id"],
            "name": source["name"],
            "manifest_sha256": fingerprint(recording.trace),
            "population": recording.population.name,
            "selection": recording.population.selection,
        }
        return {
            "name": source["name"],
            "engine": {**source["engine"], "told_from": 0, "replay_of": of},
            "clock": source["clock"],
            "programs": [dict(r) for r in rows],
            "perturbation": {**source["perturbation"], "since_max_ns": SINCE_MAX},
        }

    def events(self, rows: pa.RecordBatch) -> None:
        """Rows that programs emitted, as ring rows."""
        self.writer.append(EVENTS.name, rows)

    def coverage(self, rows: pa.RecordBatch) -> None:
        self.writer.append(COVERAGE.name, rows)

    def maps(self, records: Sequence[Record]) -> None:
        """Records of map rings. Raises Refused for a map that has too many columns for a stream."""
        for span, n, body in records:
            program = self._programs[span.program]
            try:
                table = self._maps.of(span.program, program, span.map)
            except ValueError as error:
                raise Refused(f"cannot record map {program.maps[span.map].name}", str(error)) from None
            self.writer.declare(table.table)
            self.writer.append(table.table.name, table.rows(span, n, map_ring.entries(table.declared, n, body)))
            if span.refused:
                where = {"worker": span.worker, "t_begin": span.t_begin, "t_end": span.t_end}
                self.writer.lose("map_full", span.refused, **where, detail=table.table.name)

    def finish(self, t: int) -> None:
        """Seal it. t: where the recording ended."""
        self.writer.finish("ended", t=t)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self.writer.close()
        shutil.rmtree(self.writer.path, ignore_errors=True)


def _of_the_engine(stream: str, rows: pa.Table) -> pa.Table:
    """What the recording's own programs lost of their maps is not lost here."""
    if stream != LOSS.name:
        return rows
    return rows.filter(pc.invert(pc.starts_with(rows["kind"], "map_"))).combine_chunks()


def fingerprint(trace: Trace) -> str:
    """SHA-256 of what the manifest says, of every part's checksum too: which trace it is, and in which state."""
    text = json.dumps(trace.manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
