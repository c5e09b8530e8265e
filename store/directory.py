"""The directory of a new trace: making room for it and writing what is known from the start."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import durable, manifest, map_streams, parquet, retention, spool
from .errors import Refused
from .tables import COMPILER_TABLES, DERIVED

_ENTRIES = {manifest.FILE, "tables", map_streams.KEY, spool.FOLDER, *manifest.STREAM_NAMES, *(t.name for t in DERIVED)}


def begin(
    path: Path, given: dict[str, Any], tables: Mapping[str, pa.Table], max_bytes: int | None, keep_ns: int | None
) -> manifest.Manifest:
    """Write the side tables and the first manifest of a new trace. Raises OSError and Refused."""
    if unknown := set(given) - {*manifest.GIVEN, "name"}:
        raise Refused("cannot write the manifest", f"{', '.join(sorted(unknown))} is not the recorder's")
    content = manifest.fresh(
        name=given.get("name", path.stem),
        trace_id=uuid.uuid4().hex,
        created_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        writer={"pid": os.getpid(), "start": durable.process_start(os.getpid())},
        max_bytes=max_bytes,
    )
    declared = {t.name: t for t in COMPILER_TABLES}
    for name, rows in tables.items():
        if name not in declared or rows.schema != declared[name].schema:
            raise Refused(f"cannot write the side table {name}", "it is not declared so")
        content["tables"][name] = parquet.write_side_table(path, declared[name], rows)
    if keep_ns is not None:
        content[retention.KEY] = retention.fresh(keep_ns)
    book = manifest.Manifest(path, content)
    book.commit(lambda m: m.update(given))
    return book


def check_room(path: Path, force: bool) -> None:
    """Refuse a path that is taken, with `force` only one where no trace stands or one that is being recorded.

    One is refused too whose directory is not there, or may not be written to.
    """
    what = f"cannot create {path}"
    if not path.parent.is_dir():
        raise Refused(what, f"there is no directory {path.parent}", "create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Refused(what, f"the directory {path.parent} may not be written to", "choose another")
    if not os.path.lexists(path):
        return
    if not force:
        raise Refused(what, "it exists", "use --force to replace a trace")
    if path.is_symlink() or not path.is_dir():
        raise Refused(what, "it exists and is no trace")
    names = {e.name for e in path.iterdir()}
    litter = {n for n in names if n.startswith(".") and n.endswith(durable.TEMPORARY)}
    if manifest.FILE not in names or names - litter - _ENTRIES:
        raise Refused(what, "it exists and is no trace, or holds files that are none of a trace's")
    if durable.is_locked(path):
        raise Refused(what, "it is being recorded", "end that recording first")


def make_room(path: Path, force: bool) -> None:
    """Refuse a path like `check_room`; remove the trace that stands there."""
    check_room(path, force)
    if not os.path.lexists(path):
        return
    doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{durable.TEMPORARY}")
    path.rename(doomed)
    shutil.rmtree(doomed)
