"""Sealing: finished spool files become one Parquet part, and only then go.

The order is what makes a crash harmless: write the part under a temporary name, make it durable, rename it, name it
in the manifest together with the number of the last spool file it holds, and only then remove those files. Before
the manifest speaks, the spool counts and a part without entry is litter; after, the spool up to that number is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import heap, retention, spool, stored
from .manifest import Manifest
from .parquet import Sealed, last_of_each, part_path, table_of, write_part, write_side_table
from .retiring import Retirer
from .tables import EVENTS, TOLD_TABLES, Table

PART_ROWS = 1 << 20
_PART_MOST = PART_ROWS * 5 // 4
_PART_BYTES = spool.ROTATE_BYTES
_PART_FRAMES = 8 * spool.ROTATE_FRAMES
_RETRY_S = 1.0
_TOLD = {t.name for t in TOLD_TABLES}

Change = Callable[[dict[str, Any], Sealed], None]
"""A change of the manifest that is told what could not be read."""


def groups(files: list[spool.SpoolFile], *, last: bool, each: bool = False) -> Iterator[list[spool.SpoolFile]]:
    """Consecutive files that make parts of about a million rows; a remainder only when it is the `last`.

    each: every file makes a part of its own, as in a rolling recording, where the recorder chose how long a file is.
    """
    group: list[spool.SpoolFile] = []
    rows = size = frames = 0
    for f in files:
        if group and rows + f.rows > _PART_MOST:
            yield group
            group, rows, size, frames = [], 0, 0, 0
        group.append(f)
        rows, size, frames = rows + f.rows, size + f.size, frames + len(f.frames)
        if each or rows >= PART_ROWS or size >= _PART_BYTES or frames >= _PART_FRAMES:
            yield group
            group, rows, size, frames = [], 0, 0, 0
    if group and last:
        yield group


def seal(
    folder: Path,
    manifest: Manifest,
    stream: str,
    files: list[spool.SpoolFile],
    *,
    more: Sequence[pa.RecordBatch] = (),
    also: Change | None = None,
    dispose: Callable[[spool.SpoolFile], None] = spool.remove,
    scratch: stored.Columns | None = None,
) -> Sealed:
    """One part from `files` (and rows that are in no file, `more`), in the five steps above.

    `also` changes the manifest in the same step that names the part; it is told what could not be read. Raises
    OSError; then the spool still counts. Raises Overtaken; then it has gone (see `pass_over`).
    """
    content = manifest.snapshot()
    number = _next_number(content, stream)
    sealed = write_part(folder, table_of(content, stream), number, files, more, scratch)

    def change(m: dict[str, Any]) -> None:
        if files and m["spool_sealed"][stream] >= files[-1].number:
            raise Overtaken
        if sealed.entry is not None:
            m["streams"][stream]["parts"].append(sealed.entry)
        if files:
            m["spool_sealed"][stream] = files[-1].number
        if also is not None:
            also(m, sealed)

    try:
        manifest.commit(change)
    except Overtaken:
        if sealed.entry is not None:
            part_path(folder, table_of(content, stream), number).unlink(missing_ok=True)
        raise
    for f in files:
        dispose(f)
    return sealed


class Overtaken(Exception):
    """The rows were let go of while they were being sealed."""


def pass_over(
    folder: Path, manifest: Manifest, files: list[spool.SpoolFile], retirer: Retirer
) -> list[spool.SpoolFile]:
    """Retire events that left a rolling recording's window before they were sealed: counted first, removed then.

    So a recording that seals more slowly than rows come keeps to its window and its budget all the same. The first of
    them may be in another thread's hand, whose `seal` is too early, and then it is not among those that are returned,
    or too late, and then it raises Overtaken. Raises OSError; then the spool still counts.
    """
    gone: list[spool.SpoolFile] = []
    first = 0

    def change(m: dict[str, Any]) -> None:
        nonlocal first
        gone[:] = [f for f in files if f.times is not None and f.number > m["spool_sealed"][EVENTS.name]]
        first = _next_number(m, EVENTS.name)
        # Each under a number of its own, as if it had been a part: some may have gone early, and others not.
        for number, f in enumerate(gone, first):
            assert f.times is not None
            retirer.forget_unsealed(m, number, *f.times, f.rows)
            m["spool_sealed"][EVENTS.name] = f.number

    manifest.commit(change)
    for f in gone:
        spool.remove(f)
    if gone:
        # Of an attempt to seal them for which the manifest had no room.
        part_path(folder, EVENTS, first).unlink(missing_ok=True)
    return gone


def _next_number(content: dict[str, Any], stream: str) -> int:
    """The number of a stream's next part; none is used again, not even of one that was retired."""
    parts = content["streams"][stream]["parts"]
    number = max((int(p["file"].removesuffix(".parquet").rpartition("-")[2]) for p in parts), default=0)
    return 1 + (max(number, retention.last_retired(content)) if stream == EVENTS.name else number)


def seal_table(
    folder: Path, manifest: Manifest, table: Table, files: list[spool.SpoolFile], before: pa.Table | None = None
) -> dict[str, Any]:
    """One file of an engine table from what was upserted, on top of what was sealed `before`; its manifest entry.

    Raises OSError.
    """
    batches = [b for f in files for b in spool.read(f, table.schema) if b is not None]
    rows = pa.Table.from_batches(batches, schema=table.schema)
    entry = write_side_table(
        folder, table, last_of_each(table, rows if before is None else pa.concat_tables([before, rows]))
    )

    def change(m: dict[str, Any]) -> None:
        m["tables"][table.name] = entry
        if files:
            m["spool_sealed"][table.name] = files[-1].number

    manifest.commit(change)
    for f in files:
        spool.remove(f)
    return entry


def untold_saturation(manifest: dict[str, Any], told: int) -> int:
    """Rows with saturated `since_ns` in sealed events beyond the `told` ones.

    They are counted in the part's own entry, which is written with the part or not at all, and become a row of
    `loss` at the end: so that no crash counts them twice or never.
    """
    parts = manifest["streams"][EVENTS.name]["parts"]
    total: int = sum(p.get("since_saturated", 0) for p in parts)
    return max(0, total - told)


class Sealer(threading.Thread):
    """Seals finished spool files in the background while the recording goes on."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        on_sealed: Callable[[str, list[spool.SpoolFile], dict[str, Any] | None], None],
        retirer: Retirer | None = None,
    ) -> None:
        """retirer: of a rolling recording; then every spool file of events makes a part of its own, or none."""
        super().__init__(name="megascope-seal", daemon=True)
        self._retirer = retirer
        self._folder, self._manifest, self._on_sealed = folder, manifest, on_sealed
        self._wake = threading.Condition()
        self._stopped = False
        self._scratch: stored.Columns = {}
        self.waiting: dict[str, list[spool.SpoolFile]] = {}
        """What is not sealed yet; to be touched from outside only after `stop`."""

    def submit(self, f: spool.SpoolFile) -> None:
        """Hand over a finished file. Files of a stream come in the order of their numbers."""
        with self._wake:
            self.waiting.setdefault(f.stream, []).append(f)
            self._wake.notify()

    def unsealed(self, stream: str) -> list[spool.SpoolFile]:
        """The files of a stream that wait, in the order of their numbers; the first may be in hand."""
        with self._wake:
            return list(self.waiting.get(stream, ()))

    def stop(self) -> None:
        """End the thread after the part in hand."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self.is_alive():
            self.join()

    def let_go(self) -> None:
        """Give up the memory that sealing keeps from part to part, after the last one."""
        self._scratch.clear()
        heap.trim()

    def groups(self, stream: str, files: list[spool.SpoolFile], *, last: bool) -> Iterator[list[spool.SpoolFile]]:
        """See `groups`."""
        return groups(files, last=last, each=stream == EVENTS.name and self._retirer is not None)

    def seal(self, stream: str, files: list[spool.SpoolFile]) -> None:
        """Seal the first files that wait, or let them go. Raises OSError; then they still wait."""
        if stream == EVENTS.name:
            self.pass_over()
        if self._is_gone(stream, files):
            return
        try:
            entry = seal(self._folder, self._manifest, stream, files, scratch=self._scratch).entry
        except Overtaken:
            return
        except OSError:
            if self._is_gone(stream, files):
                return
            raise
        self._no_more(stream, files)
        self._on_sealed(stream, files, entry)

    def pass_over(self) -> None:
        """Let go of the events from the first on that a rolling recording does not keep, or has no room for.

        May be called by any thread, as the recorder does when no room is left. Raises OSError; then they still wait.
        """
        over = list(takewhile(self._is_over, self.unsealed(EVENTS.name)))
        if self._retirer is None or not over:
            return
        if gone := pass_over(self._folder, self._manifest, over, self._retirer):
            self._no_more(EVENTS.name, gone)
            self._on_sealed(EVENTS.name, gone, None)

    def _is_gone(self, stream: str, files: list[spool.SpoolFile]) -> bool:
        """Whether another thread has let go of files."""
        sealed: int = self._manifest.snapshot()["spool_sealed"][stream]
        return files[-1].number <= sealed

    def _no_more(self, stream: str, files: list[spool.SpoolFile]) -> None:
        with self._wake:
            self.waiting[stream] = [f for f in self.waiting[stream] if f.number > files[-1].number]

    def run(self) -> None:
        while True:
            with self._wake:
                ready = None
                while not self._stopped and (ready := self._ready()) is None:
                    self._wake.wait()
            if ready is None:
                return
            try:
                if self._retirer is not None and self._retirer.is_tight:
                    # Here, before every part, and not only after deriving: rows come faster than they are sealed.
                    with suppress(OSError):
                        self._retirer.step()
                self.seal(*ready)
            except OSError:
                # Most likely a full disk: the spool still counts, and the end of the recording tries once more.
                with self._wake:
                    self._wake.wait(_RETRY_S)

    def _is_over(self, f: spool.SpoolFile) -> bool:
        return self._retirer is not None and f.times is not None and self._retirer.is_over(*f.times)

    def _ready(self) -> tuple[str, list[spool.SpoolFile]] | None:
        for stream, files in self.waiting.items():
            if stream not in _TOLD and (group := next(self.groups(stream, files, last=False), None)):
                return stream, group
        return None
