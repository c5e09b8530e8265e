"""What seldom happens to a keyed map, compiled once for a process: inserting, deleting, enlarging.

Sizes are arguments here, where a program's own code has them as constants. Layout: native_layout.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from .native_compile import Compiled, publish
from .native_layout import LIVE, LOW, REFUSED, Bank

INSERT, DELETE, REBUILD = "megascope.map.insert", "megascope.map.delete", "megascope.map.rebuild"
_LOW32 = 0xFFFF_FFFF
DECLARATIONS = f"""
declare ptr @{INSERT}(ptr, ptr, i64, ptr, i64, i64, i64) cold
declare void @{DELETE}(ptr, ptr, i64, i64, i64, i64)
"""
_INTRINSICS = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"

_PLACE = f"""
; Put a cell in the first free place at or after its home. At most half of the cells are taken.
define internal void @place(ptr %cells, i64 %shift, i64 %cell) {{
  %mask = lshr i64 {_LOW32}, %shift
  %tag = lshr i64 %cell, 32
  %home = lshr i64 %tag, %shift
  br label %probe
probe:
  %at = phi i64 [ %home, %0 ], [ %next, %step ]
  %place = getelementptr i64, ptr %cells, i64 %at
  %there = load i64, ptr %place
  %free = icmp eq i64 %there, 0
  br i1 %free, label %put, label %step
step:
  %one = add i64 %at, 1
  %next = and i64 %one, %mask
  br label %probe
put:
  store i64 %cell, ptr %place
  ret void
}}
"""

_FIND = f"""
; Where the cell of slot number - 1 is: it is there.
define internal i64 @find(ptr %cells, i64 %shift, i64 %tag, i64 %number) {{
  %mask = lshr i64 {_LOW32}, %shift
  %home = lshr i64 %tag, %shift
  br label %probe
probe:
  %at = phi i64 [ %home, %0 ], [ %next, %step ]
  %place = getelementptr i64, ptr %cells, i64 %at
  %there = load i64, ptr %place
  %low = and i64 %there, {_LOW32}
  %found = icmp eq i64 %low, %number
  br i1 %found, label %done, label %step
step:
  %one = add i64 %at, 1
  %next = and i64 %one, %mask
  br label %probe
done:
  ret i64 %at
}}
"""

_REMOVE = f"""
; Free a cell, and shift those back that are after it only because it was taken.
define internal void @remove(ptr %cells, i64 %shift, i64 %first) {{
  %mask = lshr i64 {_LOW32}, %shift
  br label %probe
probe:
  %hole = phi i64 [ %first, %0 ], [ %hole, %look ], [ %at, %back ]
  %before = phi i64 [ %first, %0 ], [ %at, %look ], [ %at, %back ]
  %one = add i64 %before, 1
  %at = and i64 %one, %mask
  %place = getelementptr i64, ptr %cells, i64 %at
  %there = load i64, ptr %place
  %free = icmp eq i64 %there, 0
  br i1 %free, label %done, label %look
look:
  %tag = lshr i64 %there, 32
  %home = lshr i64 %tag, %shift
  %from.home = sub i64 %at, %home
  %reach = and i64 %from.home, %mask
  %from.hole = sub i64 %at, %hole
  %need = and i64 %from.hole, %mask
  %may = icmp uge i64 %reach, %need
  br i1 %may, label %back, label %probe
back:
  %hole.at = getelementptr i64, ptr %cells, i64 %hole
  store i64 %there, ptr %hole.at
  br label %probe
done:
  %last.at = getelementptr i64, ptr %cells, i64 %hole
  store i64 0, ptr %last.at
  ret void
}}
"""


def _word(name: str, word: int, kind: str = "i64") -> str:
    return f"""
  %{name}.at = getelementptr i8, ptr %table, i64 {8 * word}
  %{name} = load {kind}, ptr %{name}.at"""


_INSERT = f"""
; The address of a new key's value; null, counted, if the map is full. ready: the byte to clear when room gets short.
define ptr @{INSERT}(ptr %table, ptr %ready, i64 %tag, ptr %key, i64 %key.size, i64 %stride, i64 %max) {{
{_word("slot", LIVE + Bank.COUNT)}
  %full = icmp uge i64 %slot, %max
  br i1 %full, label %refuse, label %take
refuse:
{_word("refused", REFUSED)}
  %refused.new = add i64 %refused, 1
  store i64 %refused.new, ptr %refused.at
  ret ptr null
take:
  %number = add i64 %slot, 1
  store i64 %number, ptr %slot.at
{_word("keys", LIVE + Bank.KEYS, "ptr")}
  %key.offset = mul i64 %slot, %key.size
  %mine = getelementptr i8, ptr %keys, i64 %key.offset
  call void @llvm.memcpy.p0.p0.i64(ptr %mine, ptr %key, i64 %key.size, i1 false)
{_word("cells", LIVE + Bank.CELLS, "ptr")}
{_word("shift", LIVE + Bank.SHIFT)}
  %high = shl i64 %tag, 32
  %cell = or i64 %high, %number
  call void @place(ptr %cells, i64 %shift, i64 %cell)
{_word("low", LOW)}
  %short = icmp uge i64 %number, %low
  br i1 %short, label %tell, label %done
tell:
  store i8 0, ptr %ready
  br label %done
done:
{_word("values", LIVE + Bank.VALUES, "ptr")}
  %offset = mul i64 %slot, %stride
  %value = getelementptr i8, ptr %values, i64 %offset
  ret ptr %value
}}
"""

_DELETE = f"""
; Delete the key whose value is at %value. The last slot, whose key has %last.tag, moves into the hole.
define void @{DELETE}(ptr %table, ptr %value, i64 %tag, i64 %last.tag, i64 %key.size, i64 %stride) {{
{_word("values", LIVE + Bank.VALUES, "ptr")}
  %from = ptrtoint ptr %values to i64
  %to = ptrtoint ptr %value to i64
  %offset = sub i64 %to, %from
  %slot = udiv i64 %offset, %stride
  %number = add i64 %slot, 1
{_word("cells", LIVE + Bank.CELLS, "ptr")}
{_word("shift", LIVE + Bank.SHIFT)}
  %at = call i64 @find(ptr %cells, i64 %shift, i64 %tag, i64 %number)
  call void @remove(ptr %cells, i64 %shift, i64 %at)
{_word("count", LIVE + Bank.COUNT)}
  %last = add i64 %count, -1
  store i64 %last, ptr %count.at
  %hole = icmp ne i64 %slot, %last
  br i1 %hole, label %move, label %done
move:
  %its = call i64 @find(ptr %cells, i64 %shift, i64 %last.tag, i64 %count)
  %its.at = getelementptr i64, ptr %cells, i64 %its
  %high = shl i64 %last.tag, 32
  %cell = or i64 %high, %number
  store i64 %cell, ptr %its.at
{_word("keys", LIVE + Bank.KEYS, "ptr")}
  %mine.offset = mul i64 %slot, %key.size
  %mine = getelementptr i8, ptr %keys, i64 %mine.offset
  %last.offset = mul i64 %last, %key.size
  %last.key = getelementptr i8, ptr %keys, i64 %last.offset
  call void @llvm.memcpy.p0.p0.i64(ptr %mine, ptr %last.key, i64 %key.size, i1 false)
  %last.value.offset = mul i64 %last, %stride
  %last.value = getelementptr i8, ptr %values, i64 %last.value.offset
  call void @llvm.memcpy.p0.p0.i64(ptr %value, ptr %last.value, i64 %stride, i1 false)
  br label %done
done:
  ret void
}}
"""

_REBUILD = f"""
; Fill new cells from %n old ones, when a map gets more room.
define void @{REBUILD}(ptr %cells, i64 %shift, ptr %old, i64 %n) {{
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %next, %step ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %done
look:
  %at = getelementptr i64, ptr %old, i64 %i
  %cell = load i64, ptr %at
  %free = icmp eq i64 %cell, 0
  br i1 %free, label %step, label %put
put:
  call void @place(ptr %cells, i64 %shift, i64 %cell)
  br label %step
step:
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}}
"""


@cache
def _compiled() -> Compiled:
    code = Compiled("maps", "\n".join((_INTRINSICS, _PLACE, _FIND, _REMOVE, _INSERT, _DELETE, _REBUILD)), thorough=True)
    publish(code, INSERT, DELETE)
    return code


def rebuild() -> Callable[[int, int, int, int], None]:
    """(cells, shift, old cells, how many). From the first call on, programs find the others by name."""
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    return _compiled().function(REBUILD, None, pointer, word, pointer, word)
