"""What the device VM exports of maps, read back. The records are declared in capture/device/vm_epochs.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...store.errors import Refused
from .execution import U64, Export
from .histogram import BUCKETS, HEAD, WORDS
from .maps import FIXED_VALUE_BYTES, Map, MapKind
from .program import Program

ENTRY, END = 1, 2
END_WORDS = 3
ROOM = 1 + 8 + WORDS
"""Words that one call of the device's export needs at least."""
_COUNT = (1 << 48) - 1


@dataclass(frozen=True)
class Closed:
    """A map's entries, sorted as `Export` says, and how many epochs they span: more than 1 where the ring was full."""

    export: Export
    epochs: int


def read(program: Program, worker: int, words: U64) -> Iterator[Closed]:
    """Maps of one part (of a worker; -1: the shared one) out of all its records. Raises Refused for anything else."""
    what, todo = f"exports of program {program.name}", "the engine is of another version, or its memory was damaged"
    keys: list[bytes] = []
    values: list[bytes] = []
    begun = -1
    at = 0
    while at < len(words):
        head = int(words[at])
        kind, index, length = head & 0xFF, head >> 8 & 0xFF_FFFF, head >> 32
        if index >= len(program.maps) or not 0 < length <= len(words) - at or begun not in (-1, index):
            raise Refused(what, f"no record begins with {head:#x}", todo)
        record, declared = words[at + 1 : at + length], program.maps[index]
        at += length
        if kind == END and length == END_WORDS:
            yield Closed(_sorted(index, declared, worker, keys, values, int(record[0])), int(record[1]))
            keys, values, begun = [], [], -1
            continue
        value = _value(declared, record[_key_words(declared) :]) if kind == ENTRY else None
        if value is None:
            raise Refused(what, f"a record of {length} words is none of map {declared.name}", todo)
        keys.append(record.tobytes()[: declared.key_size])
        values.append(value)
        begun = index
    if begun >= 0:
        raise Refused(what, f"the end of map {program.maps[begun].name} is missing", todo)


def _key_words(declared: Map) -> int:
    return -(-declared.key_size // 8)


def _value(declared: Map, words: U64) -> bytes | None:
    size = FIXED_VALUE_BYTES.get(declared.kind, declared.value_size)
    if declared.kind != MapKind.HIST:
        return words.tobytes()[:size] if len(words) == -(-size // 8) else None
    buckets = (words[HEAD:] >> np.uint64(48)).astype(np.int64)
    if len(words) < HEAD or np.any(buckets >= BUCKETS):
        return None
    out = np.zeros(WORDS, np.uint64)
    out[:HEAD] = words[:HEAD]
    out[HEAD + buckets] = words[HEAD:] & np.uint64(_COUNT)
    return out.tobytes()


def _sorted(index: int, declared: Map, worker: int, keys: list[bytes], values: list[bytes], refused: int) -> Export:
    def table(rows: list[bytes], size: int) -> NDArray[np.uint8]:
        return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), size)

    k = table(keys, declared.key_size)
    v = table(values, FIXED_VALUE_BYTES.get(declared.kind, declared.value_size))
    order = np.lexsort(k.T)
    return Export(index, worker, k[order], v[order], refused)
