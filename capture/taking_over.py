"""Taking over a segment from a recorder that is gone: from where on a recording's rows and coverage are the same.

Rows, records of intervals and exports of maps are freed each by themselves. So a recorder that is killed may have taken
the coverage of rows that are still in a ring, and rows whose coverage is still to come. Whoever comes after it finds no
common place in what is there, and begins at the next one: what is in the rings is passed by, and a worker's events are
of this recording from the first cut on that is published after that. Whatever the last recorder took stood before that
cut; whatever comes after it is still to be taken. The mask that a recording asks for makes every monitor cut.

An engine that is gone cuts no more. What it left is read from where the rings were freed, and intervals are kept where
all their rows are in the rings; the other rows are kept without a claim, as the rows of an interval that stayed open.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ..store.tables import RING_ROW
from .accounts import I64, Accounts
from .segment import slots
from .segment.drain import Loss, RingReader
from .segment.program_words import SlotState
from .segment.reader import SegmentReader
from .segment.summaries import SummaryReader
from .segment.words import Control, Cursor, Record, Summary, Worker

HELD_ROWS = 1 << 20
"""Rows that wait for their worker's cut, at most; then they are given up, and a later cut is waited for."""
_NONE: I64 = np.empty((0, Summary.WORDS), np.int64)
_NEVER = np.iinfo(np.int64).max


class TakingOver:
    """What of a segment's rows and records is of this recording. Of a segment that nobody has recorded: all.

    Made before anything is taken. left_out: rows that were taken and are not of it. unclaimed: rows are kept that no
    closed interval speaks for; known at the end.
    """

    def __init__(self, segment: SegmentReader, rings: RingReader, summaries: SummaryReader, accounts: Accounts) -> None:
        self.left_out = 0
        self.unclaimed = False
        self._passed_by = self._records = 0
        self._accounts = accounts
        self._monitor_of = segment.monitor_of.astype(np.int64)
        workers = segment.layout.workers
        self._known = np.ones(workers, np.bool_)
        """[workers] whether it is known where this recording begins"""
        self._begin = np.zeros(workers, np.int64)
        """[workers] first sequence number of this recording"""
        self._behind = np.zeros(workers, np.bool_)
        """[workers] whether rows from before may still come"""
        self._held: list[pa.RecordBatch] = []
        self._again = False
        self._gone = False
        self._first = np.full(workers, _NEVER)
        """[workers] the first row that is here of those whose cut may be missing"""
        self._cuts: list[I64] = []
        """of an engine that is gone: all records"""
        if not _was_recorded(segment):
            return
        self._behind[:] = True
        if segment.status().text in ("ended", "failed", "died"):
            self._gone = True
            self._begin[:] = _NEVER
            return
        # In this order: rows after a cut that is published from now on stand behind what is passed by here.
        self._passed_by = rings.pass_by()
        self._records = summaries.pass_by()
        # Where nobody records and no program runs, the last cut is over, and none comes before something is asked for.
        fired = np.minimum(segment.workers()[:, Worker.FIRED], 1 << 62).astype(np.int64)
        if _is_quiet(segment):
            self._begin = fired + 1
        else:
            self._known[:] = False

    @property
    def said(self) -> str:
        """What was left out, in one line; empty where nothing was."""
        texts, rows = [], self._passed_by + self.left_out
        if rows or self._records:
            texts.append(
                f"about {rows:,} rows and {self._records:,} records of intervals are of no recording, and left out"
            )
        if self.unclaimed:
            texts.append("there are rows whose intervals are not here, so nobody knows what is missing between them")
        return f"rings were freed before this recording: {'; '.join(texts)}" if texts else ""

    def take_records(self, words: I64) -> I64:
        """Those of this recording, of [records, 16] words that were taken at once: a cut's are."""
        if self._gone:
            self._cuts.append(words)
            return _NONE
        if self._known.all() or not (len(words) or self._again):
            return words
        worker = words[:, Summary.WHAT] >> 32
        before = ~self._known[worker]
        cuts = before & (words[:, Summary.WHAT] & 0xFF == Record.INTERVAL)
        if self._again:
            # They may have been published before the rows that were given up.
            self._again, cuts = False, np.zeros_like(cuts)
        of, to = worker[cuts], words[cuts, Summary.SEQ_TO]
        np.maximum.at(self._begin, of, to)
        np.maximum.at(self._accounts.closed_to, of, to)
        np.maximum.at(self._accounts.open_since, of, words[cuts, Summary.T_END])
        self._known[of] = True
        self._records += int(np.count_nonzero(before))
        kept: I64 = words[~before]
        return kept

    def take_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of this recording that are known to be, of rows that were taken now or before."""
        if not self._behind.any():
            return rows
        if self._gone:
            self._met(rows)
            return rows
        if rows.num_rows:
            self._held.append(rows)
        if not self._held or not self._known.any():
            self._bound()
            return rows.slice(0, 0)
        rows = _joined(self._held)
        worker, seq = rows["worker"].to_numpy(), rows["seq"].to_numpy().astype(np.int64)
        known = self._known[worker]
        ours = known & (seq >= self._begin[worker])
        self._behind[worker[ours]] = False
        self.left_out += int(np.count_nonzero(known & ~ours))
        self._held = [] if known.all() else [rows.filter(pa.array(~known))]
        self._bound()
        return rows if ours.all() else rows.filter(pa.array(ours))

    def take_losses(self, losses: Iterable[Loss]) -> list[Loss]:
        """Those of this recording, of what was missing in a ring."""
        kept = []
        for loss in losses:
            if self._known.all() or (loss.monitor is not None and self._known[self._monitor_of == loss.monitor].all()):
                kept.append(loss)
            else:
                self._give_up()
        return kept

    def rest(self) -> tuple[pa.RecordBatch, I64]:
        """At the end: rows whose worker was never cut, and records of an engine that is gone; all are to be kept."""
        rows, self._held = _joined(self._held), []
        self._met(rows)
        self.unclaimed |= rows.num_rows > 0
        words = np.concatenate([_NONE, *self._cuts])
        self._cuts = []
        ours = self._whole(words)
        self._records += len(words) - int(np.count_nonzero(ours))
        return rows, words[ours]

    def reopen(self) -> bool:
        """After the rest was booked: whether there are rows that no closed interval speaks for; they stay open."""
        accounts = self._accounts
        some = (accounts.seen_rows > accounts.closed_rows) & (self._first < _NEVER)
        if self._gone:
            self.unclaimed |= bool(some.any() or accounts.seen_of.any())
            # Where the last interval is closed, what is open came before the first one that is.
            before = some & (accounts.closed_to >= accounts.seen_to)
            accounts.seen_to[before] = self._begin[before]
        accounts.closed_to[some] = self._first[some]
        return self.unclaimed

    def _met(self, rows: pa.RecordBatch) -> None:
        np.minimum.at(self._first, rows["worker"].to_numpy(), rows["seq"].to_numpy().astype(np.int64))

    def _whole(self, words: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which records are of intervals all of whose rows are in the rings, and of cuts all of whose records are."""
        what, stamp = words[:, Summary.WHAT], words[:, Summary.STAMP]
        kind, worker = what & 0xFF, what >> 32
        cuts = (kind == Record.INTERVAL) & (words[:, Summary.SEQ_FROM] >= self._first[worker])
        since = np.full(len(self._first), _NEVER)
        np.minimum.at(since, worker[cuts], stamp[cuts])
        np.minimum.at(self._begin, worker[cuts], words[cuts, Summary.SEQ_FROM])
        # What was merged over workers is claimed from where each of them is.
        merged = np.zeros(int(self._monitor_of.max(initial=0)) + 1, np.int64)
        np.maximum.at(merged, self._monitor_of, since)
        begin = np.where(kind == Record.MERGED, merged[self._monitor_of[worker]], since[worker])
        whole: np.ndarray[tuple[int], np.dtype[np.bool_]] = stamp >= begin
        return whole

    def _bound(self) -> None:
        if sum(rows.num_rows for rows in self._held) > HELD_ROWS:
            self._give_up()

    def _give_up(self) -> None:
        """Let go of the rows that wait: this recording begins at a cut that is published after them."""
        self.left_out += sum(rows.num_rows for rows in self._held)
        self._held, self._again = [], True


def _was_recorded(segment: SegmentReader) -> bool:
    """Whether anybody has asked for a mask or freed anything before."""
    lay = segment.layout
    commit = segment.read(lay.control_offset + Control.COMMIT, 1)
    return any(commit) or any(segment.read(lay.tails_offset, 2 * lay.monitors))


def _is_quiet(segment: SegmentReader) -> bool:
    """Whether no monitor records or runs a program, nor is about to."""
    commit = segment.read(segment.layout.control_offset + Control.COMMIT, 1)[0]
    cursors = segment.cursors()
    idle = bool((cursors[:, Cursor.MASK] == 0).all() and (cursors[:, Cursor.ACK] == commit).all())
    return idle and all(line.state == SlotState.FREE for line in slots.lines(segment))


def _joined(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    batches = pa.Table.from_batches(rows, RING_ROW.schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], RING_ROW.schema)
