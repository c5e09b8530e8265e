"""The capture loop: drain, account, spool; seal in the background; end in order whatever happens to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..store.errors import Refused
from ..store.tables import ENGINE_TABLES, HOOKS, RECORDER, SINCE_MAX
from ..store.trace import TraceWriter
from .accounts import Accounts
from .segment.drain import Loss, RingReader
from .segment.layout import Clock, Cursor, Policy
from .segment.lease import Lease
from .segment.reader import ClockFit, SegmentReader, Truncated
from .segment.summaries import SummaryReader
from .segment.told import HostRingReader

FLUSH_S = 0.1
"""What a SIGKILL may cost: rows gathered since the last flush."""
STATUS_S = 0.05
QUIET_S = 0.002
STALL_S = 2.0
_SCHEMAS = {t.name: t.schema for t in ENGINE_TABLES}


@dataclass(frozen=True)
class Progress:
    """A snapshot for the live line. Rates are per second since the last snapshot."""

    seconds: float
    rows: int
    rows_per_s: float
    bytes: int
    lost: int
    loss_share: float
    backlog_rows: int
    sealing_lag_rows: int
    stopped: str | None
    """why raw rows are being dropped: disk_budget, disk_full or None"""
    dropped: int
    """rows dropped for that reason, known when the recording has ended; they are among `lost`"""


class Session:
    """One recording of one segment into one trace."""

    def __init__(self, segment: SegmentReader, out: Path, *, force: bool = False, max_bytes: int | None = None) -> None:
        self.segment = segment
        self.lease = Lease(segment)
        self.writer = TraceWriter.create(out, manifest(segment), segment.tables, force=force, max_bytes=max_bytes)
        self.rings, self.summaries, self.told = RingReader(segment), SummaryReader(segment), HostRingReader(segment)
        self.accounts = Accounts(segment)
        self.lost = 0
        self._fits: list[ClockFit] = []
        self._began = self._flushed = self._looked = time.monotonic()
        self._last = (self._began, 0)
        self._stalled = False
        self._t_seen = 0
        self._dropped = 0

    def run(
        self,
        *,
        stopped: Callable[[], bool],
        progress: Callable[[Progress], None] = lambda _: None,
        progress_s: float = 0.5,
        seconds: float | None = None,
        stop_engine: bool = False,
    ) -> str:
        """Record until the engine ends or dies, `stopped()` says so, or `seconds` are over.

        stop_engine: when the recording is stopped, ask the engine to end too, and record its end.
        Returns why it ended: ended, failed, died, stopped or truncated. Raises Refused, with what was copied kept, when
        the segment's own words do not fit together.
        """
        self.lease.record(self.segment.layout.exported)
        shown, reason = self._began, ""
        try:
            while not reason:
                took = self._pass()
                now = time.monotonic()
                if now - self._looked > STATUS_S:
                    self._looked = now
                    reason = self._look()
                if stopped() or (seconds is not None and now - self._began > seconds):
                    reason = "stopped"
                if now - shown > progress_s:
                    shown = now
                    progress(self.progress())
                if not took:
                    time.sleep(QUIET_S)
            if reason == "stopped":
                self._settle(stop_engine)
            self._rest()
            if reason == "died":
                self._died()
            self._now()
            self._remember_clock()
        except Truncated as e:
            reason = "truncated"
            self.writer.lose("segment_truncated", 1, detail=e.why)
            self._died()
        except Refused as e:
            # The engine's own words do not fit together: keep what was copied, say what happened.
            self._died()
            self.writer.finish("refused", detail=e.why, t=self._t_seen)
            raise
        self.writer.finish(reason, t=self._t_seen)
        self._dropped = self.rings.taken - self.writer.rows["events"]
        return reason

    def progress(self) -> Progress:
        now, rows = time.monotonic(), self.rings.taken
        then, before = self._last
        self._last = (now, rows)
        eligible, lost = self.accounts.eligible, self.lost + self._dropped
        return Progress(
            now - self._began,
            rows,
            (rows - before) / max(now - then, 1e-9),
            self.writer.bytes_written,
            lost,
            lost / eligible if eligible else 0.0,
            self.rings.backlog,
            self.writer.sealing_lag_rows,
            self.writer.raw_stopped,
            self._dropped,
        )

    def release(self) -> None:
        self.lease.release()

    # --- one pass ----------------------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Take what there is, at most one copy buffer of rows. Whether there was anything."""
        # Summaries first: rows that a closed interval counts were published before it.
        words, summary_losses = self.summaries.take()
        batch = self.rings.take()
        if batch.rows.num_rows:
            self.accounts.saw(batch.rows)
            self._t_seen = max(self._t_seen, int(batch.rows["t"].to_numpy().max()))
            self.writer.append("events", batch.rows)
        losses = batch.losses + summary_losses
        if len(words):
            intervals, coverage, counted = self.accounts.book(words)
            self._append("intervals", intervals)
            self._append("coverage", coverage)
            losses += counted
        told, told_losses = self.told.take()
        for table, rows in told.items():
            columns = [
                pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), _SCHEMAS[table], strict=True)
            ]
            self.writer.upsert(table, pa.record_batch(columns, schema=_SCHEMAS[table]))
        for loss in losses + told_losses:
            self._lose(loss)
        now = time.monotonic()
        if now - self._flushed > FLUSH_S:
            self._flushed = now
            self.writer.flush()
        return bool(batch.rows.num_rows or len(words) or told)

    def _append(self, stream: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.writer.append(stream, rows)

    def _lose(self, loss: Loss) -> None:
        rank = int(self.segment.rank_of[loss.worker]) if loss.worker is not None else None
        if loss.kind in ("queue_full", "ring_full", "overwritten", "torn_block", "bad_row"):
            self.lost += loss.count
        self.writer.lose(
            loss.kind,
            loss.count,
            rank=rank,
            worker=loss.worker,
            monitor=loss.monitor,
            t_begin=loss.t_begin,
            t_end=loss.t_end,
            detail=loss.detail,
        )

    def _look(self) -> str:
        """The reason to end that the engine gives, if any; on the way, its clock and its silence."""
        status = self.segment.status()
        self._remember_clock()
        silent = (time.time_ns() - status.heartbeat_ns) / 1e9
        if silent > STALL_S and status.alive and not self._stalled:
            self._stalled = True
            self.writer.lose("engine_stalled", 1, detail=f"no heartbeat for {silent:.1f} s")
        elif silent < STALL_S:
            self._stalled = False
        return status.text if status.text in ("ended", "failed", "died") else ""

    def _remember_clock(self) -> None:
        fits = self.segment.clock_fits()
        if fits != self._fits:
            known = {f.host_ns: f for f in self._fits} | {f.host_ns: f for f in fits}
            self._fits = [known[k] for k in sorted(known)]
            rows = [{"host_ns": f.host_ns, "device_ns": f.device_ns, "error_ns": f.error_ns} for f in self._fits]
            self.writer.update(clock={"fits": rows})

    # --- the end -----------------------------------------------------------------------------------------------

    def _settle(self, stop_engine: bool, seconds: float = 5.0) -> None:
        """Until every worker's interval is closed: by the engine's end, or by a cleared mask that all acknowledge."""
        commit = -1
        if stop_engine:
            self.lease.stop_engine()
        else:
            commit = self.lease.record(0)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.segment.status().text == "running":
            if (self.segment.cursors()[:, Cursor.ACK] == commit).all():
                return
            if not self._pass():
                time.sleep(QUIET_S)

    def _rest(self) -> None:
        """What is still there: two passes in a row that bring nothing end it."""
        empty, deadline = 0, time.monotonic() + 60.0
        while empty < 2 and time.monotonic() < deadline:
            empty = 0 if self._pass() else empty + 1

    def _died(self) -> None:
        intervals, coverage = self.accounts.unclosed(self._t_seen)
        self._append("intervals", intervals)
        self._append("coverage", coverage)
        self.writer.lose("engine_died", max(1, intervals.num_rows), t_end=self._t_seen)

    def _now(self) -> None:
        for batch in self.segment.now().to_batches():
            self._append("now", batch)


def manifest(segment: SegmentReader) -> dict[str, Any]:
    """What capture knows of the engine, for the trace's manifest."""
    lay, said = segment.layout, segment.engine
    exported = [h.name for h in HOOKS if lay.exported >> h.id & 1]
    return {
        "name": lay.name,
        "engine": {
            "name": lay.name,
            "kind": str(said.get("kind", "live")),
            "pid": lay.engine_pid,
            "clock_kind": Clock(lay.clock).name.lower(),
            "clock_tick_ns": lay.clock_tick_ns,
            "epoch_ns": lay.epoch_ns,
            "policy": Policy(lay.policy).name.lower(),
            "exported_hooks": exported,
            "params": dict(said.get("params", {})),
        },
        "clock": {"fits": []},
        "programs": [{"program": RECORDER, "name": "recorder", "selection": "all", "source": "", "hash": ""}],
        "perturbation": {"hooks": exported, "since_max_ns": SINCE_MAX} | dict(said.get("perturbation", {})),
    }
