"""What a manifest may say: every value checked before anything is done with it.

Types, ranges, and plain names of files: what passes here can be opened without a surprise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import map_streams
from .tables import (
    ABI_MAJOR,
    DERIVED,
    FORMAT_VERSION,
    HOOK_BY_NAME,
    KEPT_TABLES,
    LOSS,
    PROGRAMS,
    RECORDER_TABLES,
    STREAMS,
    TOLD_TABLES,
    schema_hash,
)

STATES = ("recording", "sealed", "unsealed")
STREAM_NAMES = tuple(t.name for t in STREAMS)
TABLE_NAMES = tuple(t.name for t in KEPT_TABLES)
SPOOLED = (*STREAM_NAMES, *(t.name for t in TOLD_TABLES))
"""What passes through the spool, in the order in which it is sealed."""

GIVEN = ("engine", "clock", "programs", "perturbation")
"""Keys that the recorder supplies and may update; all others are the store's own."""

_DEPTH = 16
_I64 = 1 << 63
_PART_KEYS = {"rows": 1 << 40, "bytes": 1 << 46, "crc32": (1 << 32) - 1}


class Bad(Exception):
    """What is wrong with a value, and where."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object whose keys are all different. Raises ValueError."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key stands twice")
    return out


def no_constant(text: str) -> None:
    """For `json.loads`: neither NaN nor infinity. Raises ValueError."""
    raise ValueError(f"{text} is no number")


def check_versions(m: dict[str, Any]) -> None:
    """Of this format, ABI and schema? Raises Bad."""
    if m.get("format") != FORMAT_VERSION or isinstance(m.get("format"), bool):
        raise Bad(f"has format {_short(m.get('format'))}, this version reads {FORMAT_VERSION}")
    abi = m.get("abi")
    if not isinstance(abi, list) or len(abi) != 2 or not all(type(v) is int and 0 <= v < 1 << 16 for v in abi):
        raise Bad(f"has hook ABI {_short(abi)}, which is no version")
    if abi[0] != ABI_MAJOR:
        raise Bad(f"has hook ABI {abi[0]}.{abi[1]}, this version reads {ABI_MAJOR}.x")
    if m.get("schema_hash") != schema_hash():
        raise Bad(f"has schema hash {_short(m.get('schema_hash'))}, this version reads {schema_hash()[:16]}…")


def add_new_tables(m: dict[str, Any]) -> None:
    """Of a trace that was recorded before a table of the recorder was declared: it has none of its rows."""
    if isinstance(sealed := m.get("spool_sealed"), dict):
        for table in RECORDER_TABLES:
            sealed.setdefault(table.name, 0)


def check_plain(value: Any, where: str, depth: int) -> None:
    """Sizes that any reader can hold: 64-bit integers, finite floats, bounded depth. Raises Bad."""
    if depth > _DEPTH:
        raise Bad(f"is nested too deeply at {where[:100]}")
    # Every value of a manifest comes here at every commit, and nearly all of them are these.
    kind = type(value)
    if (kind is str and value.isascii()) or (kind is int and -_I64 <= value < _I64):
        return
    if isinstance(value, dict):
        for k, v in value.items():
            if not isinstance(k, str):
                raise Bad(f"has a key that is no text at {where[:100] or 'its top'}")
            check_plain(v, f"{where}.{k}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            check_plain(v, f"{where}[{i}]", depth + 1)
    elif isinstance(value, float):
        if value - value != 0:
            raise Bad(f"has a number that is not finite at {where[:100]}")
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -_I64 <= value < _I64:
            raise Bad(f"has a number beyond 64 bits at {where[:100]}")
    elif isinstance(value, str):
        if "\ud800" <= max(value, default="") <= "\udfff" or any("\ud800" <= c <= "\udfff" for c in value):
            raise Bad(f"has text that is no Unicode at {where[:100]}")
    elif value is not None and not isinstance(value, bool):
        raise Bad(f"has a value that is no JSON at {where[:100]}")


def _short(value: Any) -> str:
    return repr(value)[:40]


def _need(container: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = container.get(key)
    if type(value) is not kind:
        raise Bad(f"has no {kind.__name__} at {where}{key}")
    return value


def _need_int(container: dict[str, Any], key: str, low: int, high: int, where: str) -> int:
    value: int = _need(container, key, int, where)
    if not low <= value <= high:
        raise Bad(f"says {where}{key} is {_short(value)}")
    return value


def check_content(m: dict[str, Any]) -> None:
    """Every key that this format knows; others are left alone. Raises Bad."""
    if not re.fullmatch(r"[0-9a-f]{32}", _need(m, "id", str, "")):
        raise Bad("has an id that is not 32 hexadecimal digits")
    for key in ("name", "created_utc"):
        _need(m, key, str, "")
    writer = _need(m, "writer", dict, "")
    _need_int(writer, "pid", 0, 1 << 31, "writer.")
    _need_int(writer, "start", 0, _I64 - 1, "writer.")
    if _need(m, "state", str, "") not in STATES:
        raise Bad(f"has state {_short(m['state'])}")
    end = m.get("end", ...)
    if end is not None and (not isinstance(end, dict) or not isinstance(end.get("reason"), str)):
        raise Bad("has an end without a reason")
    max_bytes = _need(m, "budget", dict, "").get("max_bytes")
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
        raise Bad(f"has a disk budget of {_short(max_bytes)}")
    _check_given(m)
    _check_sealed(m)


def map_names(m: dict[str, Any]) -> tuple[str, ...]:
    """Streams of programs' maps, as the manifest declares them. Raises Bad."""
    try:
        return map_streams.check(m.get(map_streams.KEY, {}))
    except ValueError as error:
        raise Bad(str(error)) from None


def streams_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of all streams of a trace, of maps too."""
    return (*STREAM_NAMES, *content.get(map_streams.KEY, {}))


def spooled_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of all that passes through its spool."""
    return (*SPOOLED, *content.get(map_streams.KEY, {}))


def _check_given(m: dict[str, Any]) -> None:
    engine = _need(m, "engine", dict, "")
    for key, value in engine.items():
        if key in ("pid", "clock_tick_ns", "epoch_ns", "told_from"):
            _need_int(engine, key, 0, _I64 - 1, "engine.")
        elif key in ("name", "kind", "clock_kind", "policy"):
            _need(engine, key, str, "engine.")
        elif key == "exported_hooks":
            if not isinstance(value, list) or not all(isinstance(h, str) and h in HOOK_BY_NAME for h in value):
                raise Bad(f"exports hooks that the ABI does not have: {_short(value)}")
        elif key == "params":
            _need(engine, key, dict, "engine.")
    fits = _need(_need(m, "clock", dict, ""), "fits", list, "clock.")
    for fit in fits:
        if not isinstance(fit, dict):
            raise Bad("has a clock fit that is no object")
        for key in ("host_ns", "device_ns", "error_ns"):
            _need_int(fit, key, -_I64, _I64 - 1, "clock.fits.")
    for row in _need(m, "programs", list, ""):
        _check_program(row)
    _need(m, "perturbation", dict, "")


def slot_of(program: Mapping[str, Any]) -> int | None:
    """The bit of `by` that a program of the manifest had; None: it had left before the recording, and no one knows."""
    slot: int | None = program.get("slot", program["program"] - 1)
    return slot


def bit_of(program: Mapping[str, Any]) -> int:
    """The mask of a program's rows in `by`; 0 where it is not known which bit it had."""
    slot = slot_of(program)
    return 0 if slot is None else 1 << slot


def _check_program(row: Any) -> None:
    named = {c.name for c in PROGRAMS if not c.nullable}
    if not isinstance(row, dict) or not named <= set(row) <= set(PROGRAMS.names):
        raise Bad(f"has a program that is no row of {', '.join(PROGRAMS.names)}")
    _need_int(row, "program", 1, 32 if "slot" not in row else (1 << 31) - 1, "programs.")
    for column in PROGRAMS:
        value = row.get(column.name)
        if column.type == "str":
            _need(row, column.name, str, "programs.")
        elif column.name == "slot" and value is not None:
            _need_int(row, "slot", 0, 31, "programs.")
        elif column.type == "i64" and value is not None:
            _need_int(row, column.name, 0, _I64 - 1, "programs.")
        elif column.type == "strs" and value is not None and not set(value) <= set(HOOK_BY_NAME):
            raise Bad(f"has a program at hooks that the ABI does not have: {_short(value)}")


def _check_sealed(m: dict[str, Any]) -> None:
    streams = _need(m, "streams", dict, "")
    maps = map_names(m)
    if set(streams) != {*STREAM_NAMES, *maps}:
        raise Bad("lists other streams than " + ", ".join((*STREAM_NAMES, *maps)))
    for name in streams:
        _check_parts(streams, name, rf"{name.rpartition('.')[2]}-\d{{6,12}}\.parquet")
    if "derived" in m:
        _check_derived(_need(m, "derived", dict, ""))
    if "retention" in m:
        _check_retention(_need(m, "retention", dict, ""))
    for loss in _need(m, "repair", list, "") if "repair" in m else ():
        if not isinstance(loss, dict) or set(loss) != set(LOSS.names):
            raise Bad("has a pending loss that is no row of loss")
    tables = _need(m, "tables", dict, "")
    for name, entry in tables.items():
        if name not in TABLE_NAMES or not isinstance(entry, dict):
            raise Bad(f"lists a table {_short(name)} that does not exist")
        _check_file(entry, name, rf"{name}\.parquet")
    sealed = _need(m, "spool_sealed", dict, "")
    if set(sealed) != {*SPOOLED, *maps}:
        raise Bad("has no spool_sealed for every stream")
    for name in sealed:
        _need_int(sealed, name, 0, 10**12, "spool_sealed.")


def _check_parts(container: dict[str, Any], name: str, pattern: str) -> None:
    parts = _need(_need(container, name, dict, "streams."), "parts", list, f"streams.{name}.")
    files = set()
    for part in parts:
        if not isinstance(part, dict):
            raise Bad(f"has a part of {name} that is no object")
        _check_file(part, name, pattern)
        if "since_saturated" in part:
            _need_int(part, "since_saturated", 0, part["rows"], f"streams.{name}.")
        low, high = part.get("t_min"), part.get("t_max")
        known = type(low) is int and type(high) is int and low <= high
        if not known and (low is not None or high is not None or name == "events"):
            raise Bad(f"has no time range for {part['file']}")
        files.add(part["file"])
    if len(files) != len(parts):
        raise Bad(f"lists a part of {name} twice")


def _check_derived(d: dict[str, Any]) -> None:
    for name in ("upto", "lost_upto"):
        _need_int(d, name, 0, 10**12, "derived.")
    _need(d, "finished", bool, "derived.")
    for name in (counts := _need(d, "counts", dict, "derived.")):
        _need_int(counts, name, 0, _I64 - 1, "derived.counts.")
    for table in DERIVED:
        _check_parts(d, table.name, rf"{table.name}-(lost-)?\d{{6,12}}\.parquet")
    if "state" in d:
        state = _need(d, "state", dict, "derived.")
        if not isinstance(state.get("file"), str) or not re.fullmatch(r"open-\d{6,12}\.state", state["file"]):
            raise Bad(f"names a file {_short(state.get('file'))} for what is carried over")
        for key in ("bytes", "crc32"):
            _need_int(state, key, 0, _PART_KEYS[key], "derived.state.")
        _need_int(state, "tiles_until", -_I64, _I64 - 1, "derived.state.")


def _check_retention(r: dict[str, Any]) -> None:
    _need_int(r, "keep_ns", 1, _I64 - 1, "retention.")
    if r.get("horizon") is not None:
        _need_int(r, "horizon", -_I64, _I64 - 1, "retention.")
    for pin in _need(r, "pins", list, "retention."):
        if not isinstance(pin, list) or [type(t) for t in pin] != [int, int] or pin[0] > pin[1]:
            raise Bad(f"has a pin {_short(pin)}, which is no stretch of time")
    before = 0
    for run in _need(r, "retired", list, "retention."):
        if not isinstance(run, dict):
            raise Bad("has retired something that is no run of parts")
        where = "retention.retired."
        before = _need_int(run, "last", _need_int(run, "first", before + 1, 10**12, where), 10**12, where)
        _need_int(run, "early", 0, _need_int(run, "rows", 0, _I64 - 1, where), where)
        _need_int(run, "t_end", _need_int(run, "t_begin", -_I64, _I64 - 1, where), _I64 - 1, where)


def _check_file(entry: dict[str, Any], stream: str, pattern: str) -> None:
    # A whole match of a plain name: neither "/" nor ".." can be in it.
    file = entry.get("file")
    if not isinstance(file, str) or not re.fullmatch(pattern, file):
        raise Bad(f"names a file {_short(file)} for {stream}")
    for key, high in _PART_KEYS.items():
        _need_int(entry, key, 0, high, f"{stream}.")
