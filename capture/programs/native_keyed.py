"""Keyed maps in LLVM assembly: find a key, insert it, delete it. The layout and its reasons stand in native_layout.

Functions of map m are called `@m<m>.<what>`; `bank` is the address of a Bank, `table` of a map's whole table.
"""

from __future__ import annotations

from .helpers import E_NOENT
from .llvm_text import Text, function
from .maps import Map
from .native_cells import DELETE, INSERT
from .native_layout import LIVE, Bank, stride

_FIBONACCI32 = 0x9E3779B1
_FIBONACCI64 = -0x61C8864680B583EB
_LOW32 = 0xFFFF_FFFF
_SEED = 0x2545F4914F6CDD1D


def word(text: Text, base: str, index: int) -> str:
    """The address of a word."""
    return text.let(f"getelementptr i8, ptr {base}, i64 {8 * index}") if index else base


def pieces(size: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the integers that make up a key."""
    out, at = [], 0
    for width in (8, 4, 2, 1):
        while size - at >= width:
            out.append((at, width))
            at += width
    return out


def _piece(text: Text, key: str, offset: int, width: int) -> str:
    at = text.let(f"getelementptr i8, ptr {key}, i64 {offset}") if offset else key
    value = text.let(f"load i{8 * width}, ptr {at}, align 1")
    return value if width == 8 else text.let(f"zext i{8 * width} {value} to i64")


def _tag(m: Map) -> str:
    """32 bits of a key. Multiplying by an odd number loses nothing, so that a short key and its tag are one."""
    text = Text()
    if m.key_size <= 4:
        tag = "0"
        for offset, width in pieces(m.key_size):
            part = text.let(f"shl i64 {_piece(text, '%key', offset, width)}, {8 * offset}")
            tag = text.let(f"or i64 {tag}, {part}")
        tag = text.let(f"and i64 {text.let(f'mul i64 {tag}, {_FIBONACCI32}')}, {_LOW32}")
    else:
        mixed = str(_SEED)
        for offset, width in pieces(m.key_size):
            mixed = text.let(f"xor i64 {mixed}, {_piece(text, '%key', offset, width)}")
            mixed = text.let(f"mul i64 {mixed}, {_FIBONACCI64}")
            mixed = text.let(f"xor i64 {mixed}, {text.let(f'lshr i64 {mixed}, 32')}")
        tag = text.let(f"lshr i64 {text.let(f'mul i64 {mixed}, {_FIBONACCI64}')}, 32")
    text.do(f"ret i64 {tag}")
    return str(text)


def _same(m: Map) -> str:
    """Whether the key at %mine is the one at %key, given that their tags are the same."""
    text, same = Text(), "true"
    for offset, width in pieces(m.key_size) if m.key_size > 4 else []:
        mine, key = _piece(text, "%mine", offset, width), _piece(text, "%key", offset, width)
        same = text.let(f"and i1 {same}, {text.let(f'icmp eq i64 {mine}, {key}')}")
    text.do(f"ret i1 {same}")
    return str(text)


def _find(name: str, m: Map) -> str:
    """The address of a key's value, or null."""
    return f"""
  %shift.at = getelementptr i8, ptr %bank, i64 {8 * Bank.SHIFT}
  %shift = load i64, ptr %shift.at
  %cells.at = getelementptr i8, ptr %bank, i64 {8 * Bank.CELLS}
  %cells = load ptr, ptr %cells.at
  %mask = lshr i64 {_LOW32}, %shift
  %tag = call i64 {name}.tag(ptr %key)
  %home = lshr i64 %tag, %shift
  br label %probe
probe:
  %at = phi i64 [ %home, %0 ], [ %next, %step ]
  %cell.at = getelementptr i64, ptr %cells, i64 %at
  %cell = load i64, ptr %cell.at
  %free = icmp eq i64 %cell, 0
  br i1 %free, label %miss, label %compare
compare:
  %its = lshr i64 %cell, 32
  %alike = icmp eq i64 %its, %tag
  br i1 %alike, label %look, label %step
look:
  %number = and i64 %cell, {_LOW32}
  %slot = add i64 %number, -1
  %keys.at = getelementptr i8, ptr %bank, i64 {8 * Bank.KEYS}
  %keys = load ptr, ptr %keys.at
  %mine.offset = mul i64 %slot, {m.key_size}
  %mine = getelementptr i8, ptr %keys, i64 %mine.offset
  %same = call i1 {name}.same(ptr %mine, ptr %key)
  br i1 %same, label %hit, label %step
step:
  %one = add i64 %at, 1
  %next = and i64 %one, %mask
  br label %probe
hit:
  %values = load ptr, ptr %bank
  %offset = mul i64 %slot, {stride(m)}
  %value = getelementptr i8, ptr %values, i64 %offset
  ret ptr %value
miss:
  ret ptr null
"""


def _insert(name: str, m: Map) -> str:
    """The address of a new key's value, or null, counted, if the map is full. What it holds is from before, or zero."""
    sizes = f"i64 {m.key_size}, i64 {stride(m)}, i64 {m.max_entries}"
    return f"""
  %tag = call i64 {name}.tag(ptr %key)
  %flag = getelementptr i8, ptr %ready, i64 %worker
  %value = call ptr @{INSERT}(ptr %table, ptr %flag, i64 %tag, ptr %key, {sizes})
  ret ptr %value
"""


def _delete(name: str, m: Map) -> str:
    """0, or -2 if the key is not there."""
    return f"""
  %value = call ptr {name}.find(ptr %table, ptr %key)
  %missing = icmp eq ptr %value, null
  br i1 %missing, label %absent, label %present
absent:
  ret i64 {E_NOENT}
present:
  %tag = call i64 {name}.tag(ptr %key)
  %count.at = getelementptr i8, ptr %table, i64 {8 * (LIVE + Bank.COUNT)}
  %count = load i64, ptr %count.at
  %last = add i64 %count, -1
  %keys.at = getelementptr i8, ptr %table, i64 {8 * (LIVE + Bank.KEYS)}
  %keys = load ptr, ptr %keys.at
  %last.offset = mul i64 %last, {m.key_size}
  %last.key = getelementptr i8, ptr %keys, i64 %last.offset
  %last.tag = call i64 {name}.tag(ptr %last.key)
  call void @{DELETE}(ptr %table, ptr %value, i64 %tag, i64 %last.tag, i64 {m.key_size}, i64 {stride(m)})
  ret i64 0
"""


def keyed(m: int, declared: Map) -> str:
    """Definitions for one map."""
    name, hot = f"@m{m}", "alwaysinline"
    make = f"ptr {name}.insert(ptr %ready, i64 %worker, ptr %table, ptr %key)"
    return "\n".join(
        (
            function(f"i64 {name}.tag(ptr %key)", _tag(declared), hot),
            function(f"i1 {name}.same(ptr %mine, ptr %key)", _same(declared), hot),
            function(f"ptr {name}.find(ptr %bank, ptr %key)", _find(name, declared), hot),
            function(make, _insert(name, declared), hot),
            function(f"i64 {name}.delete(ptr %table, ptr %key)", _delete(name, declared), hot),
        )
    )
