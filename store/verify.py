"""Is a trace whole? What `megascope check` reads, and what it holds against what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import derived, durable, identities, manifest, parquet, retention, spool
from .errors import Refused
from .litter import litter, unsound
from .reader import Part, Trace
from .sequence import Keys, Once
from .tables import EVENTS, KEPT_TABLES, LOSS

REPAIRED = "repaired"
"""Reason of the end record that repair writes where the recorder left none."""

Progress = Callable[[int, int], None]
"""Told how many files of how many are done."""

_REPAIR = "run megascope check --repair"
_RESTORE = f"restore it from a copy, or {_REPAIR}"


class Finding(NamedTuple):
    """Something about a trace: severity as of a loss (info, degraded, damaged), file inside it, what, what to do."""

    severity: str
    file: str
    what: str
    todo: str


class Report:
    """What a check found. `rows`, by stream and derived table, counts what was read and is sound.

    `remarks`: what the derived tables lack or left out because of what was recorded; nothing of it is wrong on disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = "unreadable"
        self.rows: dict[str, int] = {}
        self.findings: list[Finding] = []
        self.remarks: list[Finding] = []

    @property
    def clean(self) -> bool:
        """Nothing worse than info was found."""
        return all(f.severity == "info" for f in self.findings)

    def add(self, severity: str, file: str, what: str, todo: str = "") -> None:
        # File names are whatever somebody called them.
        name = "".join(c if c.isprintable() else "?" for c in file)
        self.findings.append(Finding(severity, name, " ".join(what.split()), todo))


def check(path: Path, *, progress: Progress | None = None) -> Report:
    """Read all of a trace and say what is wrong with it. Raises nothing for a damaged trace: that is a finding."""
    path = Path(path)
    report = Report(path)
    try:
        trace = Trace.open(path)
    except Refused as error:
        _unreadable_manifest(path, error, report)
        return report
    with trace:
        report.state = trace.state
        if trace.state == "recording":
            report.add("info", "", "the trace is being recorded: only what is sealed was checked")
        elif trace.state == "unsealed":
            report.add("degraded", "", "the trace is unsealed", _REPAIR)
        elif (trace.manifest["end"] or {}).get("reason") == REPAIRED:
            report.add("info", "", "the trace was repaired: its recorder left no end record")
        _Checking(trace, report, progress).run()
    return report


def _unreadable_manifest(path: Path, error: Refused, report: Report) -> None:
    todo = "restore it from a copy: it cannot be rebuilt, as nothing else says what engine, clock and hooks it was"
    if not path.is_dir():
        todo = "give the path of a NAME.mscope directory"
    report.add("damaged", manifest.FILE, error.why, todo)
    names = (*manifest.STREAM_NAMES, *derived.NAMES)
    parts = sum(1 for s in names if (path / s).is_dir() for _ in (path / s).glob(f"{s}-*.parquet"))
    if parts:
        report.add("info", "", f"{parts} parts are there; each is a Parquet file that can be read by itself")


class _Checking:
    """One check of one trace."""

    def __init__(self, trace: Trace, report: Report, progress: Progress | None) -> None:
        self.trace, self.report, self.path = trace, report, trace.path
        self.once = Once()
        self.by: dict[int, int] = {}
        self.summaries: dict[str, list[pa.Table]] = {"intervals": [], "coverage": [], "loss": []}
        self._progress = progress
        self.streams = manifest.streams_of(trace.manifest)
        self._done = 0
        self._total = sum(len(derived.parts_of(trace.manifest, n)) for n in (*self.streams, *derived.NAMES))

    def run(self) -> None:
        for stream in (*self.streams, *derived.NAMES):
            self.report.rows[stream] = 0
            for part in self._entries(stream):
                self._check_part(stream, part)
                self._done += 1
                if self._progress:
                    self._progress(self._done, self._total)
        self.summaries["loss"].append(retention.losses(self.trace.manifest))
        self._check_tables()
        if self.trace.state != "recording":
            self._check_spool()
            self._check_sums()
        self._check_derived()
        self._check_litter()

    def _entries(self, stream: str) -> Iterator[Part]:
        for e in derived.parts_of(self.trace.manifest, stream):
            folder = self.path / parquet.folder_of(stream)
            yield Part(folder / e["file"], e["rows"], e["t_min"], e["t_max"], e["bytes"], e["crc32"])

    def _check_part(self, stream: str, part: Part) -> None:
        name = f"{parquet.folder_of(stream)}/{part.path.name}"
        if why := unsound(part):
            if self._went(stream, part):
                return
            todo = f"{_REPAIR}, which builds it again" if stream in derived.NAMES else _RESTORE
            self.report.add("damaged", name, f"{why} ({part.rows} rows)", todo)
            return
        schema = parquet.table_of(self.trace.manifest, stream).schema
        try:
            with pq.ParquetFile(part.path) as file:
                if file.schema_arrow.remove_metadata() != schema:
                    raise Refused(name, "has other columns than declared")
                wanted = ["t", "rank", "worker", "seq", "by"] if stream == EVENTS.name else None
                rows = file.read(columns=wanted)
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, Refused) as error:
            if self._went(stream, part):
                return
            why = error.why if isinstance(error, Refused) else str(error).splitlines()[0]
            self.report.add("damaged", name, f"cannot be decoded: {why}", "report it: its checksum holds")
            return
        if rows.num_rows != part.rows:
            self.report.add("damaged", name, f"has {rows.num_rows} rows, the manifest says {part.rows}")
        if part.t_min is not None and parquet.time_range(stream, rows) != (part.t_min, part.t_max):
            self.report.add("damaged", name, "holds other times than the manifest says")
        self.report.rows[stream] += rows.num_rows
        if stream == EVENTS.name:
            keys = _keys(rows)
            if not _is_ascending(keys):
                self.report.add("damaged", name, "is not in order of rank, worker, seq")
            self._count(name, rows, lambda: _keys(pq.read_table(part.path, columns=["rank", "worker", "seq"])))
        elif stream in self.summaries:
            self.summaries[stream].append(rows.replace_schema_metadata(None))

    def _went(self, stream: str, part: Part) -> bool:
        """Whether a rolling recording has retired a part since the trace was opened."""
        if self.trace.state != "recording" or retention.KEY not in self.trace.manifest:
            return False
        try:
            return part.path.name not in {e["file"] for e in derived.parts_of(manifest.read(self.path), stream)}
        except Refused:
            return False

    def _count(self, name: str, events: pa.Table, load: Callable[[], Keys]) -> None:
        if twice := self.once.add(name, _keys(events), load):
            self.report.add("damaged", name, f"{twice} rows stand in it twice")
        by = events["by"].to_numpy()
        used = int(np.bitwise_or.reduce(by)) if len(by) else 0
        for program in range(1, 33):
            if used >> (program - 1) & 1:
                self.by[program] = self.by.get(program, 0) + int(np.count_nonzero(by >> (program - 1) & 1))

    def _check_spool(self) -> None:
        for note in self.trace.notes:
            if note.startswith(spool.FOLDER) or "spool is missing" in note:
                self.report.add("damaged", spool.FOLDER, note, _REPAIR)
        for name in manifest.spooled_of(self.trace.manifest):
            schema = parquet.spooled_schema(parquet.table_of(self.trace.manifest, name))
            for f in self.trace.spooled(name):
                file = f"{spool.FOLDER}/{f.path.name}"
                good = [b for b in spool.read(f, schema) if b is not None]
                bad = f.rows - sum(b.num_rows for b in good)
                if bad:
                    self.report.add("damaged", file, f"{bad} rows in it fail their checksum", _REPAIR)
                if f.cut:
                    self.report.add("degraded", file, f"{f.cut} bytes at its end were cut off while written", _REPAIR)
                if good and name in self.report.rows:
                    self.report.rows[name] += f.rows - bad
                if good and name == EVENTS.name:
                    rows = pa.Table.from_batches(good)

                    def again(f: spool.SpoolFile = f, schema: pa.Schema = schema) -> Keys:
                        return _keys(pa.Table.from_batches([b for b in spool.read(f, schema) if b is not None]))

                    self._count(file, rows, again)
                elif good and name in self.summaries:
                    self.summaries[name].append(pa.Table.from_batches(good))

    def _check_sums(self) -> None:
        whole = {n: pa.concat_tables([parquet.BY_NAME[n].schema.empty_table(), *t]) for n, t in self.summaries.items()}
        for stream, what in identities.unequal_rows(whole["intervals"], whole["coverage"]):
            self.report.add("damaged", stream, what, "report it: the engine's or the recorder's counting is wrong")
        self._check_gone(whole["loss"])
        for a, b, rows in self.once.twice():
            self.report.add("damaged", a, f"{rows} rows of it are in {b} too")
        if self.trace.state == "sealed" and all(f.severity != "damaged" for f in self.report.findings):
            wrong = identities.unequal_events(self.by, self._by_slot(whole["coverage"]), whole["loss"])
            if wrong:
                # Of what a killed recorder had taken last, the coverage may have been still to come.
                repaired = (self.trace.manifest["end"] or {}).get("reason") == REPAIRED
                self.report.add("info" if repaired else wrong[0], EVENTS.name, wrong[1])

    def _check_gone(self, losses: pa.Table) -> None:
        """What was in the trace and no repair brings back, since only a copy has it."""
        for row in losses.to_pylist():
            if row["kind"] == "part_unreadable":
                what = f"{row['count']} rows are gone: {row['detail']}"
                self.report.add("degraded", LOSS.name, what, "restore a copy")

    def _by_slot(self, coverage: pa.Table) -> pa.Table:
        """Coverage with programs numbered as the bits of `by` are: from 1."""
        known = {p["program"]: manifest.slot_of(p) for p in self.trace.manifest["programs"]}
        slots = {program: slot + 1 for program, slot in known.items() if slot is not None}
        numbers = [slots.get(p, p) for p in coverage["program"].to_pylist()]
        at = coverage.schema.get_field_index("program")
        return coverage.set_column(at, coverage.schema.field(at), pa.array(numbers, pa.int32()))

    def _check_derived(self) -> None:
        m = self.trace.manifest
        if self.trace.state == "sealed" and not self.trace.is_derived:
            parts = derived.parts_of(m, EVENTS.name)
            done = len(parts) - len(derived.not_taken(m, EVENTS.name))
            what = f"tasks, waits and tiles are derived from {done} of {len(parts)} parts of events"
            self.report.add("info", "", what, f"{_REPAIR} to derive the rest")
        for table, what in derived.remarks((m.get(derived.KEY) or derived.fresh())["counts"]):
            self.report.remarks.append(Finding("info", table, what, ""))

    def _check_tables(self) -> None:
        for table in KEPT_TABLES:
            try:
                rows = self.trace.table(table.name)
            except Refused as error:
                self.report.add("damaged", f"tables/{table.name}.parquet", error.why, "restore it from a copy")
                continue
            if table.key and rows.num_rows != rows.group_by(list(table.key)).aggregate([]).num_rows:
                self.report.add("damaged", f"tables/{table.name}.parquet", "has two rows with the same key")

    def _check_litter(self) -> None:
        # A recorder goes on while this is looked at, also when its trace is sealed: what it has just made is no litter.
        busy = self.trace.state == "recording" or durable.is_locked(self.path)
        for file, kind in litter(self.trace):
            if kind == "damaged":
                self.report.add("info", file, "was put aside by repair: it cannot be read whole")
            elif kind == "unknown":
                self.report.add("info", file, "is no file of a trace", "move it elsewhere")
            elif kind == "part" and not busy:
                self.report.add("info", file, "is not in the manifest: it does not count", "move it elsewhere")
            elif kind != "part" and not busy:
                self.report.add("info", file, "was left behind by a crash", f"{_REPAIR}, which removes it")


def _keys(rows: pa.Table) -> Keys:
    return Keys.of(*(rows[c].to_numpy() for c in ("rank", "worker", "seq")))


def _is_ascending(keys: Keys) -> bool:
    who, seq = keys.who, keys.seq
    return bool(((who[1:] > who[:-1]) | (who[1:] == who[:-1]) & (seq[1:] >= seq[:-1])).all())
