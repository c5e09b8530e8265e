"""What eBPF C needs beside the context: sections, map definitions, helpers. The second half of `megascope.bpf.h`.

Names and shapes are libbpf's where libbpf has them, so that what an operator knows, and clang's diagnostics, hold here.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from .helpers import ANY, HELPERS, NEW, OLD, Arg, Helper, Returns
from .histogram import BUCKETS
from .maps import MapFlag, MapKind

KERNEL_IDS = 1000
"""Helpers and map kinds below it are the kernel's, and bear its names."""

_MACROS = """\
/* Where a function runs: SEC("hook/complete"), SEC("hook/wait,resume"), SEC("pick"). */
#ifndef SEC
#define SEC(name) __attribute__((section(name), used))
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef __noinline
#define __noinline __attribute__((noinline))
#endif

/* A map: struct { __uint(type, …); __type(key, …); __type(value, …); __uint(max_entries, …); __uint(map_flags, …); }
   name SEC(".maps"). A constant that is set when the program is loaded (--set NAME=VALUE): volatile const. */
#ifndef __uint
#define __uint(name, val) int (*name)[val]
#define __type(name, val) __typeof__(val) *name
#endif"""

_CORE = """\
/* What the ABI has that the program is loaded under, which may be another minor than this header's. */
#ifndef bpf_core_field_exists
#define bpf_core_field_offset(field) __builtin_preserve_field_info(field, 0)
#define bpf_core_field_size(field) __builtin_preserve_field_info(field, 1)
#define bpf_core_field_exists(field) __builtin_preserve_field_info(field, 2)
#define bpf_core_type_exists(type) __builtin_preserve_type_info(*(__typeof__(type) *)0, 0)
#define bpf_core_type_size(type) __builtin_preserve_type_info(*(__typeof__(type) *)0, 1)
#endif"""

_MAP_MEANING = {
    MapKind.HASH: "any key → any value",
    MapKind.ARRAY: "__u32 index → any value; every index is always there",
    MapKind.HIST: "any key → struct ms_hist; only through ms_hist_add",
    MapKind.STATS: "any key → struct ms_stats; only through ms_stats_add",
    MapKind.FEEDBACK: "__u32 index → struct ms_feedback; written by the host alone",
}
_FLAGS = (
    ("BPF_F_RDONLY_PROG", MapFlag.READ_ONLY, "the program may not write it"),
    ("MS_F_SHARED", MapFlag.SHARED, "one for all workers of a rank; else each worker has its own"),
    ("MS_F_AGGREGATE", MapFlag.AGGREGATE, "exported and reset at each epoch's end; hist and stats always are"),
)
_ARGUMENTS = {
    Arg.MAP: "void *map",
    Arg.KEY: "const void *key",
    Arg.VALUE: "const void *value",
    Arg.CONTEXT: "const struct megascope_event *event",
}
_RETURNS = {Returns.VALUE_OR_NULL: "void *", Returns.CLOSED_OR_NULL: "const void *"}


def map_kind_name(kind: MapKind) -> str:
    """The C constant of a map kind."""
    return f"{'BPF' if kind < KERNEL_IDS else 'MS'}_MAP_TYPE_{kind.name}"


def helper_name(helper: Helper) -> str:
    """The C function of a helper."""
    return f"{'bpf' if helper.id < KERNEL_IDS else 'ms'}_{helper.name}"


def _define(name: str, value: int, meaning: str) -> str:
    text = f"{value:#x}u" if value >= 0x80 else str(value)
    return f"#define {name} {text}" + (f"  /* {meaning} */" if meaning else "")


def _declare(helper: Helper) -> Iterator[str]:
    scalar = "__u64 flags" if Arg.VALUE in helper.args else "__u64 n"
    arguments = ", ".join(_ARGUMENTS.get(a, scalar) for a in helper.args) or "void"
    returns = _RETURNS.get(helper.returns, "long " if helper.args else "__u64 ")
    maps = f"; map: {', '.join(k.name.lower() for k in helper.maps)}" if helper.maps else ""
    yield from wrap(f"/* {helper.meaning.replace('r3', 'n')}{maps} */", 110, subsequent_indent="   ")
    yield f"static {returns}(*const {helper_name(helper)})({arguments}) = (void *){helper.id};"


def render() -> Iterator[str]:
    """Lines of C, to stand behind `struct megascope_event`."""
    yield "/* <linux/bpf.h> and <bpf/bpf_helpers.h> may be included too, before this header. */"
    yield _MACROS
    yield ""
    own = [k for k in MapKind if k >= KERNEL_IDS]
    yield "#ifndef __LINUX_BPF_H__"
    yield from (_define(map_kind_name(k), k, _MAP_MEANING[k]) for k in MapKind if k not in own)
    yield from (_define(n, v, m) for n, v, m in _FLAGS if n.startswith("BPF_"))
    yield _define("BPF_ANY", ANY, "flags of bpf_map_update_elem: any key")
    yield _define("BPF_NOEXIST", NEW, "only a new one")
    yield _define("BPF_EXIST", OLD, "only an old one")
    yield "#endif"
    yield from (_define(map_kind_name(k), k, _MAP_MEANING[k]) for k in own)
    yield from (_define(n, v, m) for n, v, m in _FLAGS if not n.startswith("BPF_"))
    yield "struct ms_stats {\n  __u64 count, sum, min, max;\n};"
    yield f"struct ms_hist {{\n  __u64 count, sum, min, max, buckets[{BUCKETS}];\n}};"
    yield "struct ms_feedback {\n  __u64 value, epoch; /* the epoch that it was computed from; 0: none yet */\n};"
    yield ""
    yield "#ifndef __BPF_HELPERS__"
    yield from (line for h in HELPERS if h.id < KERNEL_IDS for line in _declare(h))
    yield "#endif"
    yield from (line for h in HELPERS if h.id >= KERNEL_IDS for line in _declare(h))
    yield ""
    yield _CORE
