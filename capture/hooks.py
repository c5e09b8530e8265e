"""The hook ABI, rendered: CUDA header, eBPF C header, JSON schema and documentation, all from one declaration.

What is rendered stands in the repository (`RENDERED`), so that a C++ engine needs no Python; a test proves that it is
current and compiles it. `python -m megascope.capture.hooks` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

from ..store.tables import (
    ABI_MAJOR,
    ABI_MINOR,
    COMPILER_TABLES,
    DEP_CLASSES,
    ENGINE_TABLES,
    EVENT_ROW,
    FLAG_RANGE,
    HOOKS,
    PEER_ALL,
    PEER_NONE,
    RECORDER,
    REQUEST_SET_BIT,
    REQUEST_STATES,
    REQUEST_UNKNOWN,
    RING_ROW,
    Table,
    schema_hash,
)
from .programs import c_header
from .segment import layout, program_words, words

_C_TYPES = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t"}
_BPF_TYPES = {"u8": "__u8", "u16": "__u16", "u32": "__u32", "u64": "__u64"}
_NOTE = "Rendered from store/tables.py and capture/segment/ by `python -m megascope.capture.hooks`."


def _struct(table: Table, name: str, types: dict[str, str], attribute: str = "") -> Iterator[str]:
    yield f"/* {table.meaning} */"
    yield f"struct {name} {{"
    for c in table:
        unit = f", {c.unit}" if c.unit else ""
        yield f"  {types[c.type]} {c.name};".ljust(24) + f"/* {table.offsets[c.name]}: {c.meaning}{unit} */"
    yield f"}}{attribute};"


def _constants() -> Iterator[tuple[str, int, str]]:
    """(name, value, meaning) of every constant of the ABI proper."""
    yield "MS_ABI_MAJOR", ABI_MAJOR, ""
    yield "MS_ABI_MINOR", ABI_MINOR, ""
    for h in HOOKS:
        yield f"MS_HOOK_{h.name.upper()}", h.id, f"{h.meaning}; aux: {h.aux}"
        for bit, meaning in h.flags:
            yield f"MS_{h.name.upper()}_{meaning.split()[0].upper()}", bit, f"flag of {h.name}: {meaning}"
    for i, name in enumerate(DEP_CLASSES):
        yield f"MS_DEP_{name.upper()}", i, ""
    for i, name in enumerate(REQUEST_STATES, 1):
        yield f"MS_REQUEST_{name.upper()}", i, ""
    yield "MS_FLAG_RANGE", FLAG_RANGE, "tile holds how many consecutive tasks the row stands for"
    yield "MS_REQUEST_NONE", 0, ""
    yield "MS_REQUEST_UNKNOWN", REQUEST_UNKNOWN, ""
    yield "MS_REQUEST_SET", REQUEST_SET_BIT, "request holds a set id"
    yield "MS_PEER_ALL", PEER_ALL, ""
    yield "MS_PEER_NONE", PEER_NONE, ""


def _define(name: str, value: int, meaning: str) -> str:
    text = f"{value:#x}u" if value >= 0x80 else str(value)
    return f"#define {name} {text}" + (f"  /* {meaning} */" if meaning else "")


def _enum(prefix: str, members: type[IntEnum]) -> Iterator[str]:
    yield f"/* {(members.__doc__ or '').splitlines()[0]} */"
    for name, member in members.__members__.items():
        yield _define(f"MS_{prefix}_{name}", int(member), "")


def render_cuda() -> str:
    """`hooks_abi.cuh`: the event row, the ABI's constants and the segment's words, for C++ and CUDA."""
    out = [
        f"// Megascope hook ABI {ABI_MAJOR}.{ABI_MINOR} and segment layout. {_NOTE}",
        "#pragma once",
        "#include <stdint.h>",
    ]
    out += ["", *_struct(EVENT_ROW, "ms_row", _C_TYPES), "", *_struct(RING_ROW, "ms_ring_row", _C_TYPES), ""]
    out += [_define(*c) for c in _constants()]
    out += [_define("MS_PROGRAM_RECORDER", RECORDER, "program id of the built-in recorder"), ""]
    out.append(
        "/* A block of the event ring: its header, then each column of ms_ring_row for all its rows. Column c begins"
    )
    out.append("   at MS_BLOCK_HEADER + block_rows * MS_ROW_OFF_c. */")
    out.append(
        _define("MS_BLOCK_HEADER", words.BLOCK_HEADER, "word 0 is the generation: 2k+1 while pass k writes it, 2k+2")
    )
    out += [_define(f"MS_ROW_OFF_{n.upper()}", at, "") for n, at in RING_ROW.offsets.items()]
    out.append("")
    for prefix, members in (
        ("STATE", words.State),
        ("POLICY", words.Policy),
        ("CLOCK", words.Clock),
        ("STATUS", words.Status),
        ("CONTROL", words.Control),
        ("CURSOR", words.Cursor),
        ("WORKER", words.Worker),
        ("RECORD", words.Record),
        ("SUMMARY", words.Summary),
        ("REQUESTS", program_words.Requests),
        ("OP", program_words.Op),
        ("SLOT_STATE", program_words.SlotState),
        ("SLOT", program_words.Slot),
        ("REPLY", program_words.Reply),
        ("CODE", program_words.Code),
        ("MAP_RECORD", program_words.MapRecord),
        ("MAP_RECORD_KIND", program_words.MapKindOfRecord),
    ):
        out += [*_enum(prefix, members), ""]
    out.append(_define("MS_SUMMARY_CHUNK", words.CHUNK, "summary records are freed in chunks of this many"))
    out.append(_define("MS_SLOTS", program_words.SLOTS, "lines of the slot table; slot s is bit s of `by`"))
    out.append(_define("MS_MAP_CHUNKS", program_words.MAP_CHUNKS, "a map ring is freed in so many pieces"))
    out.append(_define("MS_MERGED_WORKERS", program_words.MERGED_WORKERS, "worker of a merged record"))
    out.append(_define("MS_CLOCK_FITS", words.FITS, "clock fits kept in the status page"))
    out += ["", "/* The header page; its last four bytes are the CRC-32 of those before. */"]
    out += [_define(f"MS_HEADER_{n.upper()}", at, "") for n, at in layout.HEADER_OFFSETS.items()]
    out += [
        _define("MS_PAGE", words.PAGE, ""),
        '#define MS_MAGIC "MEGASCOP"',
        f'#define MS_SCHEMA_HASH "{schema_hash()}"',
    ]
    out += ["", "#if defined(__cplusplus) && !defined(__CUDACC_RTC__)"]
    out += [
        f'static_assert(__builtin_offsetof(ms_ring_row, {n}) == {at}, "offset of {n}");'
        for n, at in RING_ROW.offsets.items()
    ]
    out += [f'static_assert(sizeof(ms_row) == {EVENT_ROW.dtype.itemsize}, "size of ms_row");', "#endif"]
    return "\n".join(out) + "\n"


def render_bpf() -> str:
    """`megascope.bpf.h`: what eBPF C is written against: the context, maps and helpers, in libbpf's manner."""
    out = [f"/* Megascope hook ABI {ABI_MAJOR}.{ABI_MINOR}, for programs in eBPF C. {_NOTE} */", "#pragma once"]
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long")):
        out += [f"typedef signed {name} __s{bits};", f"typedef unsigned {name} __u{bits};"]
    out += ["", "/* Offsets are corrected when a program is loaded under another minor of the ABI (CO-RE). */"]
    out += ["#ifdef __bpf__", "#define MS_RELOCATED __attribute__((preserve_access_index))"]
    out += ["#else", "#define MS_RELOCATED", "#endif"]
    out += ["", *_struct(EVENT_ROW, "megascope_event", _BPF_TYPES, " MS_RELOCATED"), ""]
    out += [_define(*c) for c in _constants()]
    out += ["", *c_header.render()]
    return "\n".join(out) + "\n"


def render_json() -> str:
    """`schema.json`: the tables and hooks for a runtime without Arrow; the shape of its own `schema.json` entry."""

    def table(t: Table) -> dict[str, Any]:
        columns = [{"name": c.name, "type": c.type, "unit": c.unit, "meaning": c.meaning} for c in t]
        return {"meaning": t.meaning, "key": list(t.key), "columns": columns}

    event = table(EVENT_ROW)
    for column in event["columns"]:
        column["offset"] = EVENT_ROW.offsets[column["name"]]
    whole = {
        "abi": [ABI_MAJOR, ABI_MINOR],
        "schema_hash": schema_hash(),
        "event_row": event,
        "hooks": [{"id": h.id, "name": h.name, "aux": h.aux, "meaning": h.meaning} for h in HOOKS],
        "dep_classes": list(DEP_CLASSES),
        "request_states": dict(enumerate(REQUEST_STATES, 1)),
        "side_tables": {t.name: table(t) for t in COMPILER_TABLES},
        "engine_tables": {t.name: table(t) for t in ENGINE_TABLES},
    }
    return json.dumps(whole, indent=1) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render_docs() -> str:
    """`docs/abi.md`: the same for people."""
    out = [f"# Hook ABI {ABI_MAJOR}.{ABI_MINOR}", "", f"<!-- {_NOTE} -->", "", EVENT_ROW.meaning, ""]
    out += ["| offset | name | type | unit | meaning |", "|---|---|---|---|---|"]
    out += [f"| {EVENT_ROW.offsets[c.name]} | {c.name} | {c.type} | {c.unit} | {_cell(c.meaning)} |" for c in EVENT_ROW]
    out += ["", "| hook | name | fires when | aux | flags |", "|---|---|---|---|---|"]
    for h in HOOKS:
        flags = ", ".join(f"{b} {m}" for b, m in h.flags)
        out.append(f"| {h.id} | {h.name} | {h.meaning} | {_cell(h.aux)} | {flags} |")
    out += ["", "Dependency classes: " + ", ".join(f"{i} {n}" for i, n in enumerate(DEP_CLASSES)) + "."]
    out += ["States of a request: " + ", ".join(f"{i} {n}" for i, n in enumerate(REQUEST_STATES, 1)) + "."]
    for heading, tables in (
        ("Side tables, from the compiler", COMPILER_TABLES),
        ("Tables that the engine tells while it runs", ENGINE_TABLES),
    ):
        out += ["", f"## {heading}"]
        for t in tables:
            out += ["", f"### {t.name}", "", t.meaning, f"Key: {', '.join(t.key)}.", ""]
            out += ["| column | type | unit | meaning |", "|---|---|---|---|"]
            out += [f"| {c.name} | {c.type} | {c.unit} | {_cell(c.meaning)} |" for c in t]
    return "\n".join(out) + "\n"


ROOT = Path(__file__).resolve().parent.parent
RENDERED: dict[str, Callable[[], str]] = {
    "capture/device/hooks_abi.cuh": render_cuda,
    "capture/device/megascope.bpf.h": render_bpf,
    "capture/device/schema.json": render_json,
    "docs/abi.md": render_docs,
}
"""Path below the repository's root → what stands there."""


def main() -> None:
    for path, render in RENDERED.items():
        (ROOT / path).write_text(render())


if __name__ == "__main__":
    main()
