"""The end of a recording: what is spooled is sealed, the end is recorded, what is sealed is derived from.

In this order, because the end record is worth more than anything that can be derived again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import seal, spool
from .budget import FULL
from .derive import Deriver
from .ledger import Ledger
from .manifest import Manifest, streams_of
from .retiring import Retirer
from .tables import LOSS, TOLD_TABLES


class Ending:
    """Ends one recording, of which everything is in the spool. Used by the recorder's thread."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        sealer: seal.Sealer,
        deriver: Deriver,
        ledger: Ledger,
        retirer: Retirer | None,
    ) -> None:
        self._retirer = retirer
        self._path, self._manifest, self._ledger = path, manifest, ledger
        self._sealer, self._deriver = sealer, deriver

    def run(
        self, end: dict[str, Any], tell_saturated: Callable[[int], None], is_spooled: Callable[[str], bool]
    ) -> None:
        """Seal, record `end`, derive. `tell_saturated` puts a loss into the spool; `is_spooled`: is all of a stream?

        Raises OSError, for a full disk only when the end could not be recorded.
        """
        whole = True
        for stream in streams_of(self._manifest.snapshot()):
            if stream != LOSS.name:
                whole &= self._seal_rest(stream) and is_spooled(stream)
        # What sealing itself has to tell comes after the last event is sealed, and before the losses are.
        if saturated := seal.untold_saturation(self._manifest.snapshot(), 0):
            tell_saturated(saturated)
        whole &= self._seal_rest(LOSS.name) and is_spooled(LOSS.name)
        for table in TOLD_TABLES:
            files = self._sealer.waiting.get(table.name, [])

            def seal_table(table: Any = table, files: list[spool.SpoolFile] = files) -> None:
                entry = seal.seal_table(self._path, self._manifest, table, files)
                self._ledger.sealed(table.name, files, entry)

            whole &= _has_room(seal_table)

        def change(m: dict[str, Any]) -> None:
            m["state"], m["end"] = "sealed" if whole else "unsealed", end

        self._manifest.commit(change)
        self._deriver.stop()
        self._sealer.let_go()
        if whole and _has_room(self._deriver.finish) and (self._retirer is None or _has_room(self._retirer.finish)):
            shutil.rmtree(self._path / spool.FOLDER, ignore_errors=True)

    def _seal_rest(self, stream: str) -> bool:
        """Seal all of a stream that waits; False when there is no room for it."""
        groups = list(self._sealer.groups(stream, self._sealer.waiting.get(stream, []), last=True))
        return all(_has_room(lambda g=group: self._sealer.seal(stream, g)) for group in groups)  # type: ignore[misc]


def _has_room(act: Callable[[], None]) -> bool:
    """Do it; False when the disk is too full for it. Raises OSError for anything else."""
    try:
        act()
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True
