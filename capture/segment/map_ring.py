"""Exports of maps as records of a map ring: sparse, in columns, each with a checksum.

A record is `MapRecord.WORDS` words and the entries: all keys, each padded to 8 bytes, then all values. Histograms have
in place of values: count, sum, min and max of each; how many buckets each has; and those, bucket << 48 | count.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..programs.histogram import BUCKETS, HEAD
from ..programs.maps import Map, MapKind
from .program_words import MERGED_WORKERS, MapKindOfRecord, MapRecord
from .words import WORD

U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]
HEADER = MapRecord.WORDS * WORD
COUNT_BITS = 48
"""A bucket's count has so many, below its number."""


@dataclass(frozen=True)
class Span:
    """What an export stands for. worker: None when merged over `workers` of `rank`. Times in ns.

    coverage: eligible, observed, throttled, lost and faulted of the program over the same workers and epochs. refused:
    updates that found the map full.
    """

    program: int
    map: int
    rank: int
    worker: int | None
    workers: int
    epoch: int
    epochs: int
    t_begin: int
    t_end: int
    coverage: tuple[int, int, int, int, int]
    refused: int = 0
    state: bool = False
    """not of an epoch, but as it stood at the end"""


@dataclass(frozen=True)
class Entries:
    """keys: [n, key_size]; values: [n, value_size] bytes, or of a histogram sparse: head [n, 4], counts by bucket."""

    keys: U8
    values: U8
    head: U64
    buckets: U64
    """[n] how many of the following each has"""
    bucket: NDArray[np.int64]
    count: NDArray[np.int64]


def encode(span: Span, declared: Map, keys: U8, values: U8, limit: int) -> list[bytes]:
    """Records of at most about `limit` bytes for the entries keys [n, key_size] and values [n, value_size]."""
    n = len(keys)
    sizes = np.full(n, _padded(declared.key_size) + _padded(declared.value_size))
    if declared.kind == MapKind.HIST:
        words = np.ascontiguousarray(values).view("<u8").reshape(n, -1)
        sizes = _padded(declared.key_size) + (HEAD + 1 + np.count_nonzero(words[:, HEAD:], axis=1)) * WORD
    part = (np.cumsum(sizes) - 1) // max(1, limit - HEADER - int(sizes.max(initial=0)))
    cuts = [0, *(np.nonzero(np.diff(part))[0] + 1).tolist(), n]
    return [_record(span, declared, keys[a:b], values[a:b]) for a, b in pairwise(cuts) if a < b]


def _record(span: Span, declared: Map, keys: U8, values: U8) -> bytes:
    body = _pad(keys)
    if declared.kind == MapKind.HIST:
        words = np.ascontiguousarray(values).view("<u8").reshape(len(keys), -1)
        entry, bucket = np.nonzero(words[:, HEAD:])
        count = words[entry, HEAD + bucket] | bucket.astype(np.uint64) << np.uint64(COUNT_BITS)
        buckets = np.bincount(entry, minlength=len(keys)).astype("<u8")
        body += words[:, :HEAD].tobytes() + buckets.tobytes() + count.astype("<u8").tobytes()
    else:
        body += _pad(values)
    kind = MapKindOfRecord.STATE if span.state else MapKindOfRecord.AGGREGATE
    worker = MERGED_WORKERS if span.worker is None else span.worker
    head = np.zeros(MapRecord.WORDS, "<u8")
    head[MapRecord.WHAT] = HEADER + len(body) | kind << 32 | span.map << 48
    head[MapRecord.PROGRAM] = span.program | span.workers << 32
    head[MapRecord.WORKER] = worker | span.rank << 32
    head[MapRecord.EPOCH] = span.epoch | span.epochs << 48
    head[MapRecord.T_BEGIN], head[MapRecord.T_END] = span.t_begin, span.t_end
    head[MapRecord.ELIGIBLE : MapRecord.REFUSED] = span.coverage
    head[MapRecord.REFUSED], head[MapRecord.ENTRIES] = span.refused, len(keys)
    head[MapRecord.SUM] = zlib.crc32(body)
    return head.tobytes() + body


def filler(length: int) -> bytes:
    """`length` bytes (a multiple of 8) that say nothing."""
    return int(length | MapKindOfRecord.FILLER << 32).to_bytes(WORD, "little").ljust(length, b"\0")


def records(data: bytes) -> Iterator[tuple[Span, int, bytes]]:
    """(what for, how many entries, their bytes) of each record in `data`, which begins where a record does.

    Raises ValueError where the bytes are no such records; nothing after them can be found then.
    """
    at = 0
    while at < len(data):
        what = int.from_bytes(data[at : at + WORD], "little")
        length, kind = what & 0xFFFF_FFFF, what >> 32 & 0xFFFF
        if length < WORD or length % WORD or at + length > len(data):
            raise ValueError(f"no record at byte {at}")
        if kind != MapKindOfRecord.FILLER:
            yield _parse(data[at : at + length], kind)
        at += length


def _parse(data: bytes, kind: int) -> tuple[Span, int, bytes]:
    if len(data) < HEADER or kind not in (MapKindOfRecord.AGGREGATE, MapKindOfRecord.STATE):
        raise ValueError(f"a record of kind {kind} and {len(data)} bytes")
    w = np.frombuffer(data[:HEADER], "<u8").tolist()
    body = data[HEADER:]
    if zlib.crc32(body) != w[MapRecord.SUM]:
        raise ValueError("a record fails its checksum")
    numbers = w[MapRecord.T_BEGIN : MapRecord.ENTRIES]
    if max(numbers) >= 1 << 63 or w[MapRecord.T_BEGIN] > w[MapRecord.T_END]:
        raise ValueError("a record with impossible numbers")
    worker, workers = w[MapRecord.WORKER] & 0xFFFF_FFFF, w[MapRecord.PROGRAM] >> 32
    span = Span(
        program=w[MapRecord.PROGRAM] & 0xFFFF_FFFF,
        map=w[MapRecord.WHAT] >> 48,
        rank=w[MapRecord.WORKER] >> 32,
        worker=None if worker == MERGED_WORKERS else worker,
        workers=workers,
        epoch=w[MapRecord.EPOCH] & (1 << 48) - 1,
        epochs=w[MapRecord.EPOCH] >> 48,
        t_begin=w[MapRecord.T_BEGIN],
        t_end=w[MapRecord.T_END],
        coverage=(numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]),
        refused=w[MapRecord.REFUSED],
        state=kind == MapKindOfRecord.STATE,
    )
    return span, w[MapRecord.ENTRIES], body


def entries(declared: Map, n: int, body: bytes) -> Entries:
    """The entries of a record of the map `declared`. Raises ValueError when the bytes are not n of them."""
    key, value = _padded(declared.key_size), _padded(declared.value_size)
    none = np.empty(0, np.int64)
    if n * key > len(body):
        raise ValueError(f"{n} entries in {len(body)} bytes")
    keys = np.frombuffer(body, np.uint8, n * key).reshape(n, key)[:, : declared.key_size]
    rest = body[n * key :]
    if declared.kind != MapKind.HIST:
        if len(rest) != n * value:
            raise ValueError(f"{n} values in {len(rest)} bytes")
        values = np.frombuffer(rest, np.uint8).reshape(n, value)[:, : declared.value_size]
        return Entries(keys, values, np.empty((n, 0), np.uint64), np.empty(0, np.uint64), none, none)
    words = np.frombuffer(rest, "<u8") if len(rest) % WORD == 0 else np.empty(0, np.uint64)
    if len(words) < n * (HEAD + 1):
        raise ValueError(f"{n} histograms in {len(rest)} bytes")
    head, buckets = words[: n * HEAD].reshape(n, HEAD), words[n * HEAD : n * (HEAD + 1)]
    packed = words[n * (HEAD + 1) :]
    bucket = (packed >> np.uint64(COUNT_BITS)).astype(np.int64)
    count = (packed & np.uint64((1 << COUNT_BITS) - 1)).astype(np.int64)
    if (buckets > BUCKETS).any() or int(buckets.sum()) != len(packed) or (bucket >= BUCKETS).any():
        raise ValueError("buckets that no histogram has")
    return Entries(keys, np.empty((n, 0), np.uint8), head, buckets, bucket, count)


def _padded(size: int) -> int:
    return -(-size // WORD) * WORD


def _pad(rows: U8) -> bytes:
    out = np.zeros((len(rows), _padded(rows.shape[1])), np.uint8)
    out[:, : rows.shape[1]] = rows
    return out.tobytes()
