"""Helpers on maps in LLVM assembly: `@m<map>.<helper>`, one definition for each map that a program calls them on.

With its map's sizes constant, and inlined where it is called, a helper's common case costs a few instructions.
"""

from __future__ import annotations

from collections.abc import Mapping

from .helpers import E_2BIG, E_EXIST, E_INVAL, E_NOENT, HELPER_BY_ID, NEW, OLD, Arg
from .histogram import HEAD, SUB, SUB_BITS
from .llvm_text import function
from .maps import Map, MapKind
from .native_cells import DECLARATIONS as CELLS
from .native_keyed import keyed
from .native_layout import CLOSED, REFUSED, TABLE_WORDS, is_common, is_keyed, stride, value_bytes

PARAMETERS = "ptr %tables, ptr %common, ptr %ready, i64 %worker"
"""Of every helper: addresses as in native_layout.Env"""
INLINED = 2
"""calls of one helper on one map up to which it is inlined: the time to compile grows with every copy"""
_START = {"map_add": 0, "map_max": 0, "map_min": -1}
"""What an upsert of a new key begins with"""


def table_address(m: int, declared: Map, maps: int) -> str:
    """Instructions that make %table."""
    if is_common(declared):
        return f"  %table = getelementptr i8, ptr %common, i64 {8 * m * TABLE_WORDS}\n"
    return f"""
  %table.worker = mul i64 %worker, {8 * maps * TABLE_WORDS}
  %table.map = add i64 %table.worker, {8 * m * TABLE_WORDS}
  %table = getelementptr i8, ptr %tables, i64 %table.map
"""


def _find_indexed(declared: Map) -> str:
    return f"""
  %index = load i32, ptr %key, align 1
  %there = icmp ult i32 %index, {declared.max_entries}
  %wide = zext i32 %index to i64
  %offset = mul i64 %wide, {stride(declared)}
  %values = load ptr, ptr %bank
  %at = getelementptr i8, ptr %values, i64 %offset
  %value = select i1 %there, ptr %at, ptr null
  ret ptr %value
"""


def _make_indexed(name: str) -> str:
    """An index that is not there is refused, as a full map is."""
    return f"""
  %value = call ptr {name}.find(ptr %table, ptr %key)
  %missing = icmp eq ptr %value, null
  br i1 %missing, label %refuse, label %done
refuse:
  %refused.at = getelementptr i8, ptr %table, i64 {8 * REFUSED}
  %refused = load i64, ptr %refused.at
  %refused.new = add i64 %refused, 1
  store i64 %refused.new, ptr %refused.at
  br label %done
done:
  ret ptr %value
"""


def _make_keyed(name: str, declared: Map) -> str:
    """New values of HIST and STATS are zero as they stand: nothing is deleted from those, and closing clears them."""
    begin = ""
    if declared.kind is MapKind.HASH:
        begin = f"  call void @llvm.memset.p0.i64(ptr align 8 %new, i8 0, i64 {stride(declared)}, i1 false)\n"
        begin += "  store i64 %start, ptr %new\n" if value_bytes(declared) >= 8 else ""
    return f"""
  %old = call ptr {name}.find(ptr %table, ptr %key)
  %missing = icmp eq ptr %old, null
  br i1 %missing, label %insert, label %done
insert:
  %new = call ptr {name}.insert(ptr %ready, i64 %worker, ptr %table, ptr %key)
  %full = icmp eq ptr %new, null
  br i1 %full, label %done, label %begin
begin:
{begin}  br label %done
done:
  %value = phi ptr [ %old, %0 ], [ null, %insert ], [ %new, %begin ]
  ret ptr %value
"""


def _common(m: int, declared: Map) -> str:
    """`find(bank, key)` and `make(ready, worker, table, key, start)`: addresses of values, or null."""
    name, hot = f"@m{m}", "alwaysinline"
    if is_keyed(declared):
        body, out = _make_keyed(name, declared), keyed(m, declared)
    else:
        body = _make_indexed(name)
        out = function(f"ptr {name}.find(ptr %bank, ptr %key)", _find_indexed(declared), hot)
    return out + function(f"ptr {name}.make(ptr %ready, i64 %worker, ptr %table, ptr %key, i64 %start)", body, hot)


def _lookup(name: str, bank: int) -> str:
    """No bank, no values: an array before its first epoch closed."""
    return f"""
  %bank = getelementptr i8, ptr %table, i64 {8 * bank}
  %value = call ptr {name}.find(ptr %bank, ptr %a0)
  %values = load ptr, ptr %bank
  %none = icmp eq ptr %values, null
  %some = select i1 %none, ptr null, ptr %value
  %address = ptrtoint ptr %some to i64
  ret i64 %address
"""


def _update(name: str, declared: Map) -> str:
    """Of an array every index is there, and one beyond it is refused whatever the flags say."""
    absent = f"switch i64 %a2, label %make [ i64 {OLD}, label %noent ]" if is_keyed(declared) else "br label %make"
    return f"""
  %bad = icmp ugt i64 %a2, {OLD}
  br i1 %bad, label %inval, label %look
look:
  %old = call ptr {name}.find(ptr %table, ptr %a0)
  %missing = icmp eq ptr %old, null
  br i1 %missing, label %absent, label %present
present:
  %only.new = icmp eq i64 %a2, {NEW}
  br i1 %only.new, label %exist, label %copy
absent:
  {absent}
make:
  %new = call ptr {name}.make(ptr %ready, i64 %worker, ptr %table, ptr %a0, i64 0)
  %full = icmp eq ptr %new, null
  br i1 %full, label %toobig, label %copy
copy:
  %value = phi ptr [ %old, %present ], [ %new, %make ]
  call void @llvm.memmove.p0.p0.i64(ptr align 8 %value, ptr %a1, i64 {value_bytes(declared)}, i1 false)
  ret i64 0
inval:
  ret i64 {E_INVAL}
exist:
  ret i64 {E_EXIST}
noent:
  ret i64 {E_NOENT}
toobig:
  ret i64 {E_2BIG}
"""


def _make(name: str, start: int, then: str) -> str:
    return f"""
  %value = call ptr {name}.make(ptr %ready, i64 %worker, ptr %table, ptr %a0, i64 {start})
  %full = icmp eq ptr %value, null
  br i1 %full, label %done, label %count
count:
{then}
  br label %done
done:
  ret i64 0
"""


def _combine(operation: str) -> str:
    return f"""
  %old = load i64, ptr %value
  %new = {operation}
  store i64 %new, ptr %value
"""


_COMBINE = {
    "map_add": _combine("add i64 %old, %a1"),
    "map_min": _combine("call i64 @llvm.umin.i64(i64 %old, i64 %a1)"),
    "map_max": _combine("call i64 @llvm.umax.i64(i64 %old, i64 %a1)"),
}
_STATS = """
  %n = load i64, ptr %value
  %sum.at = getelementptr i8, ptr %value, i64 8
  %sum = load i64, ptr %sum.at
  %min.at = getelementptr i8, ptr %value, i64 16
  %min = load i64, ptr %min.at
  %max.at = getelementptr i8, ptr %value, i64 24
  %max = load i64, ptr %max.at
  %first = icmp eq i64 %n, 0
  %lower = call i64 @llvm.umin.i64(i64 %min, i64 %a1)
  %n.new = add i64 %n, 1
  %sum.new = add i64 %sum, %a1
  %min.new = select i1 %first, i64 %a1, i64 %lower
  %max.new = call i64 @llvm.umax.i64(i64 %max, i64 %a1)
  store i64 %n.new, ptr %value
  store i64 %sum.new, ptr %sum.at
  store i64 %min.new, ptr %min.at
  store i64 %max.new, ptr %max.at
"""
_HIST = (
    _STATS
    + f"""
  ; Below {SUB} a bucket is its number: the shift is 0 there.
  %at.least = or i64 %a1, {SUB}
  %zeros = call i64 @llvm.ctlz.i64(i64 %at.least, i1 true)
  %shift = sub i64 {63 - SUB_BITS}, %zeros
  %octave = shl i64 %shift, {SUB_BITS}
  %within = lshr i64 %a1, %shift
  %bucket = add i64 %octave, %within
  %buckets = getelementptr i8, ptr %value, i64 {8 * HEAD}
  %bucket.at = getelementptr i64, ptr %buckets, i64 %bucket
  %old = load i64, ptr %bucket.at
  %new = add i64 %old, 1
  store i64 %new, ptr %bucket.at
"""
)


def _body(name: str, helper: str, declared: Map) -> str:
    match helper:
        case "map_lookup_elem":
            return _lookup(name, 0)
        case "map_closed":
            return _lookup(name, CLOSED)
        case "map_update_elem":
            return _update(name, declared)
        case "map_delete_elem":
            return f"  %result = call i64 {name}.delete(ptr %table, ptr %a0)\n  ret i64 %result"
        case "hist_add":
            return _make(name, 0, _HIST)
        case "stats_add":
            return _make(name, 0, _STATS)
    return _make(name, _START[helper], _COMBINE[helper])


def helpers(calls: Mapping[tuple[int, int], int], maps: tuple[Map, ...]) -> str:
    """Definitions for (map, helper id) pairs, and what they use. calls: how many there are of each."""
    out, seen = [], set[int]()
    for m, number in sorted(calls):
        helper, declared = HELPER_BY_ID[number], maps[m]
        if m not in seen:
            seen.add(m)
            out.append(_common(m, declared))
        arguments = "".join(
            f", {'i64' if kind is Arg.SCALAR else 'ptr'} %a{i}" for i, kind in enumerate(helper.args[1:])
        )
        attribute = "alwaysinline" if calls[m, number] <= INLINED else "noinline"
        body = table_address(m, declared, len(maps)) + _body(f"@m{m}", helper.name, declared)
        out.append(function(f"i64 @m{m}.{helper.name}({PARAMETERS}{arguments})", body, attribute))
    return "\n".join(out)


DECLARATIONS = (
    CELLS
    + """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
"""
)
