"""The capture loop: drain, account, spool; seal in the background; end in order whatever happens to the engine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..store.errors import MegascopeError, Refused
from ..store.tables import ENGINE_TABLES, RECORDER, Table
from ..store.trace import TraceWriter
from .accounts import I64, Accounts
from .attaching import Attached
from .engine_manifest import manifest
from .engine_watch import EngineWatch
from .event_rows import EventRows
from .marking import Note, NoteListener, Taken
from .marks import Around, Marks
from .programs.execution import Limits
from .programs.program import Program
from .progress import Progress, Rolled
from .recorded_programs import RecordedPrograms, recorders
from .segment.drain import Loss, RingReader
from .segment.exports import MapRingReader, Record
from .segment.lease import Lease
from .segment.reader import SegmentReader, Truncated
from .segment.summaries import SummaryReader
from .segment.told import HostRingReader
from .segment.words import Cursor, Summary
from .taking_over import TakingOver
from .triggers import Triggers

if TYPE_CHECKING:
    from .live_answers import LiveAnswers

FLUSH_S = 0.1
"""What a SIGKILL may cost: rows gathered since the last flush."""
STATUS_S = 0.05
QUIET_S = 0.002
_NOTHING: tuple[I64, list[Loss]] = np.empty((0, Summary.WORDS), np.int64), []
_SCHEMAS = {t.name: t.schema for t in ENGINE_TABLES}


class Session:
    """One recording of one segment into one trace."""

    def __init__(
        self,
        segment: SegmentReader,
        out: Path,
        *,
        force: bool = False,
        max_bytes: int | None = None,
        raw: bool = True,
        keep_ns: int | None = None,
        answers: LiveAnswers | None = None,
        lease: Lease | None = None,
        temporary: bool = False,
    ) -> None:
        """raw: record every exported hook; else no rows but those that programs emit. keep_ns: a rolling recording.

        answers: where what queries print goes. lease: the segment's, where it was taken before. temporary: the trace
        goes with this process, as whoever leaves a note is told.
        """
        self.segment = segment
        self.lease = lease or Lease(segment)
        self._temporary = temporary
        try:
            said = manifest(segment) | {"programs": recorders(raw)}
            self.writer = TraceWriter.create(
                out, said, segment.tables, force=force, max_bytes=max_bytes, keep_ns=keep_ns
            )
        except BaseException:
            self.lease.release()
            raise
        self.marks = Marks(self.writer, raw=raw)
        self._notes = NoteListener(segment.path)
        self.rings, self.summaries, self.told = RingReader(segment), SummaryReader(segment), HostRingReader(segment)
        self.exports, self.accounts = MapRingReader(segment), Accounts(segment)
        triggers = Triggers(self.marks)
        self.programs = RecordedPrograms(
            segment, self.writer, self.accounts, triggers, answers, raw=raw, idle=self._idle
        )
        self.attachments = self.programs.attachments
        self._events = EventRows(self.writer, self.accounts, triggers, raw=raw)
        self._engine = EngineWatch(segment, self.writer)
        self._before = TakingOver(segment, self.rings, self.summaries, self.accounts)
        self._answers = answers
        self._raw = raw
        self._taking_summaries = True
        self._commit: int | None = None
        """what monitors acknowledge when they record for this session; None before it asks"""
        self._all_record = False
        self.lost = 0
        self._began = self._flushed = self._looked = time.monotonic()
        self._last = (self._began, 0)
        self._dropped = 0
        self._burst = segment.layout.ring_rows // 8
        self._ended: float | None = None
        """when the recording was over; sealing comes after it"""
        self._hurried = False
        """whether more may come than a nap leaves room for: a trickle of rows is no reason to spin"""

    def run(
        self,
        *,
        stopped: Callable[[], bool],
        progress: Callable[[Progress], None] = lambda _: None,
        progress_s: float = 0.5,
        seconds: float | None = None,
        stop_engine: bool = False,
        ending: Callable[[], None] = lambda: None,
    ) -> str:
        """Record until the engine ends or dies, `stopped()` says so, or `seconds` are over.

        stop_engine: when the recording is stopped, ask the engine to end too, and record its end. ending: told when the
        recording is over, before what is left is put away and sealed.
        Returns why it ended: ended, failed, died, stopped or truncated. Raises Refused, with what was copied kept, when
        the segment's own words do not fit together.
        """
        self._commit = self.lease.record(self.segment.layout.exported if self._raw else 0)
        shown, reason = self._began, ""
        try:
            while not reason:
                took = self._pass()
                now = time.monotonic()
                if now - self._looked > STATUS_S:
                    self._looked = now
                    reason = self._engine.look()
                    self._notes.poll(self._take_note)
                if not reason and (stopped() or (seconds is not None and now - self._began > seconds)):
                    # A recording that is over soon may not have looked yet.
                    reason = self._engine.look() or "stopped"
                if now - shown > progress_s:
                    shown = now
                    progress(self.progress())
                if not (took and self._hurried):
                    time.sleep(QUIET_S)
            self._ended = time.monotonic()
            ending()
            self._notes.close()
            if reason == "stopped":
                reason = self._settle(stop_engine)
            self._rest()
            self.programs.follow()
            self.programs.tell()
            if reason == "died":
                self._died()
            else:
                if self._before.reopen():
                    self._append_unclosed()
                if self._answers is not None:
                    self._answers.end(self._events.t_seen, whole=reason != "failed")
            self._now()
            self._engine.remember_clock()
            self.marks.close()
        except Truncated as e:
            reason = "truncated"
            self.marks.close()
            self.writer.lose("segment_truncated", 1, detail=e.why)
            self._died()
        except Refused as e:
            # The engine's own words do not fit together: keep what was copied, say what happened.
            self.marks.close()
            self._died()
            self.writer.finish("refused", detail=e.why, t=self._events.t_seen)
            raise
        self.writer.finish(reason, t=self._events.t_seen)
        self._dropped = self._taken - self.writer.rows["events"]
        return reason

    def progress(self) -> Progress:
        now, rows = self._ended or time.monotonic(), self._taken
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

    @property
    def _taken(self) -> int:
        """Rows of this recording so far."""
        return self.rings.taken - self._events.left_out - self._before.left_out

    @property
    def taken_over(self) -> str:
        """What an earlier recorder left behind and is not in this recording, in one line; empty if nothing is."""
        return self._before.said

    def rolled(self) -> Rolled:
        """What has been retired and marked so far."""
        return Rolled(self.writer.retired_rows, self.writer.retired_early_rows, self.marks.count, self.marks.firings)

    def release(self) -> None:
        self._notes.close()
        self.lease.release()

    # --- one pass ----------------------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Take what there is, at most one copy buffer of rows. Whether there was anything."""
        if self._answers is not None:
            self._answers.begin()
        # Summaries first: rows that a closed interval counts were published before it. Exports before the slots: whose
        # they are stood there before they did.
        words, summary_losses = self.summaries.take() if self._taking_summaries else _NOTHING
        words = self._before.take_records(words)
        exported, export_losses = self.exports.take()
        self.programs.follow()
        batch = self.rings.take()
        self._events.take(self._before.take_rows(batch.rows))
        losses = self._before.take_losses(batch.losses) + summary_losses + export_losses
        for found in self.attachments.rows(exported):
            if isinstance(found, Loss):
                losses.append(found)
            else:
                self._append_map(*found)
        self.attachments.feedback.step()
        losses += self._book(words, exported)
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
            self.marks.step()
            if not self.marks.whole.begun:
                self._look_who_records()
        self._hurried = bool(len(words) or exported) or batch.rows.num_rows >= self._burst
        return bool(batch.rows.num_rows or len(words) or told or exported)

    def _book(self, words: I64, exported: list[Record]) -> list[Loss]:
        """Losses that the records tell of."""
        losses: list[Loss] = []
        of_epochs, coverage = words, None
        if len(words) and not self._raw:
            words = words[(words[:, Summary.WHAT] >> 16 & 0xFFFF) != RECORDER]
        if len(words):
            intervals, coverage, losses = self.accounts.book(words)
            self._append("intervals", intervals)
            self._append("coverage", coverage)
        if self._answers is not None:
            self._answers.saw(exported, of_epochs, coverage)
        return losses

    def _look_who_records(self) -> None:
        # Of a monitor that acknowledged before the last look, the first rows have been taken by now.
        self.marks.whole.begun = self._all_record
        self._all_record = bool((self.segment.cursors()[:, Cursor.ACK] == self._commit).all())

    def attach(self, program: Program, limits: Limits | None = None) -> Attached:
        """Attach a program for as long as this recording lasts. Raises as `attaching.attach`."""
        return self.programs.attach(program, limits)

    def attach_all(
        self, programs: Iterable[tuple[Program, Limits]], triggers: Iterable[tuple[Program, Limits, Around]] = ()
    ) -> None:
        """Attach programs, and what each may spend, for as long as this recording lasts, before it begins.

        triggers: whenever one emits, that is marked, and the rows around it are kept. Raises as `attaching.attach`;
        then nothing is left behind, neither a program nor the trace.
        """
        try:
            self.programs.attach_all(programs, triggers)
        except MegascopeError:
            self.writer.close()
            shutil.rmtree(self.writer.path, ignore_errors=True)
            raise

    def _idle(self) -> None:
        if not self._pass():
            time.sleep(QUIET_S / 10)

    def _append_map(self, table: Table, rows: pa.RecordBatch) -> None:
        try:
            self.writer.declare(table)
        except Refused as e:
            self._lose(Loss("map_export", 1, detail=f"{table.name}: {e.why}"))
            return
        self._append(table.name, rows)

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

    def _take_note(self, note: Note) -> Taken:
        around = None if note.before is None or note.after is None else Around(note.before, note.after)
        mark = self.marks.note(self._engine.device_now(self._events.t_seen), note.text, around)
        where, goes_with = str(self.writer.path.absolute()), os.getpid() if self._temporary else 0
        return Taken(mark.mark, mark.t, mark.t_from, mark.t_to, where, goes_with)

    # --- the end -----------------------------------------------------------------------------------------------

    def _settle(self, stop_engine: bool, seconds: float = 5.0) -> str:
        """Until every worker's interval is closed: by the engine's end, or by a cleared mask that all acknowledge.

        Why the recording ends after all: the engine may die, or fail, meanwhile.
        """
        commit = -1
        self.programs.leave()
        if stop_engine:
            self.lease.stop_engine()
        else:
            # Other people's programs go on: what they emit after the cut is not of this recording.
            self._events.hold()
            commit = self.lease.record(0)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.segment.status().text == "running":
            if (self.segment.cursors()[:, Cursor.ACK] == commit).all() and self.attachments.settled:
                return "stopped"
            if not self._pass():
                time.sleep(QUIET_S)
        reason = self.segment.status().text
        if reason not in ("died", "failed"):
            return "stopped"
        self._events.keep_all()
        return reason

    def _rest(self) -> None:
        """What is still there: two passes in a row that bring nothing end it; where programs go on, the last cut."""
        empty, deadline = 0, time.monotonic() + 60.0
        if not self._events.held or not self.attachments.live:
            while empty < 2 and time.monotonic() < deadline:
                empty = 0 if self._pass() else empty + 1
        else:
            self._pass()
            self._taking_summaries = False
            # Rows of the intervals that are closed by now were published before these were.
            heads = self.segment.heads(Cursor.HEAD, "ring")
            while (self.rings.position < heads).any() and time.monotonic() < deadline:
                self._pass()
        self._events.keep(self.accounts.closed_to)
        self._keep_rest()

    def _keep_rest(self) -> None:
        rows, words = self._before.rest()
        self._events.take(rows)
        for loss in self._book(words, []):
            self._lose(loss)

    def _append_unclosed(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """What is known of intervals that nobody closed: their rows, and their coverage."""
        slot_of = {row["program"]: row["slot"] for row in self.programs.rows if row["slot"] is not None}
        live = set(self.attachments.live)
        if self._before.unclaimed:
            live |= {p for s, p in {s: p for p, s in slot_of.items()}.items() if self.accounts.seen_of[s]}
        intervals, coverage = self.accounts.unclosed(self._events.t_seen, sorted(live), slot_of)
        self._append("intervals", intervals)
        self._append("coverage", coverage)
        return intervals, coverage

    def _died(self) -> None:
        self.programs.tell()
        self._keep_rest()
        self._before.reopen()
        intervals, coverage = self._append_unclosed()
        if self._answers is not None:
            self._answers.saw([], _NOTHING[0], coverage)
            self._answers.end(self._events.t_seen, whole=False)
        self.writer.lose("engine_died", max(1, intervals.num_rows), t_end=self._events.t_seen)

    def _now(self) -> None:
        for batch in self.segment.now().to_batches():
            self._append("now", batch)
