"""What a query's maps have said so far, on the host: exports of closed epochs added up, until they are cleared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import histogram
from ..execution import Export
from ..maps import Map, MapKind
from .query import Query

Key = tuple[int, ...]
Words = NDArray[np.uint64]
_U64 = (1 << 64) - 1


class Answers:
    """Values by map and key, over all workers and the epochs added.

    A value is the u64 words of the map's kind: one (a count, sum, min, max or number kept as state), four of stats
    (count, sum, min, max), or a histogram's (`histogram.WORDS`). State has its worker before the key, as each worker
    has its own; rows of a printf likewise, so that no two are one.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self._refused: dict[tuple[str, int], int] = {}
        self._counted = np.zeros(5, np.int64)
        self._cleared: dict[str, NDArray[np.int64]] = {}
        self._maps: list[Map] = list(query.program.maps)
        self._what = {a.map: a.what for a in query.answers}
        self._values: dict[str, dict[Key, Words]] = {name: {} for name in self._what}

    def add(self, exports: Iterable[Export]) -> None:
        """Take exports: of aggregations those of closed epochs, of state what a worker's map holds now."""
        for export in exports:
            declared = self._maps[export.map]
            what = self._what.get(declared.name)
            if what is None:
                continue
            whose = declared.name, export.worker
            self._refused[whose] = export.refused + (self._refused.get(whose, 0) if what != "state" else 0)
            if what == "state":
                held = self._values[declared.name]
                self._values[declared.name] = {k: v for k, v in held.items() if k[0] != export.worker}
            values = np.ascontiguousarray(export.values).view("<u8")
            for raw, words in zip(export.keys, values, strict=True):
                self._take(declared, decoded(declared, raw.tobytes()), export.worker, words.astype(np.uint64))

    def _take(self, declared: Map, key: Key, worker: int, words: Words) -> None:
        into, what = self._values[declared.name], self._what[declared.name]
        if what in ("state", "row"):
            into[worker, *key] = words
        elif key not in into:
            into[key] = words
        elif declared.kind == MapKind.HIST:
            into[key] = histogram.merge(np.stack([into[key], words]))
        elif declared.kind == MapKind.STATS:
            a, b = (tuple(map(int, w)) for w in (into[key], words))
            into[key] = np.array(
                [a[0] + b[0] & _U64, a[1] + b[1] & _U64, min(a[2], b[2]), max(a[3], b[3])], dtype=np.uint64
            )
        elif what in ("min", "max"):
            into[key] = (np.minimum if what == "min" else np.maximum)(into[key], words)
        else:
            into[key] = into[key] + words

    def count(self, counts: Sequence[int]) -> None:
        """Events of a further stretch of time: eligible, observed, throttled, lost and faulted."""
        self._counted = self._counted + np.array(counts, np.int64)

    def coverage(self, name: str | None = None) -> tuple[int, ...]:
        """The events that a map may tell of, as in `count`, since it was last cleared; None: all."""
        return tuple((self._counted - self._cleared.get(name or "", 0)).tolist())

    def clear(self, name: str) -> None:
        """Forget a map's values, and what it refused."""
        self._cleared[name] = self._counted
        self._values[name].clear()
        self._refused = {k: n for k, n in self._refused.items() if k[0] != name}

    def refused(self, name: str) -> int:
        """What found a map full."""
        return sum(n for (of, _), n in self._refused.items() if of == name)

    def values(self, name: str) -> dict[Key, Words]:
        """A map's values by key, in order of the keys."""
        return dict(sorted(self._values[name].items()))

    def number(self, name: str, words: Words) -> int:
        """The one number that a value comes to: of avg the average, of stats and histograms how many."""
        what = self._what[name]
        if what == "avg":
            return int(words[1]) // int(words[0]) if words[0] else 0
        value = int(words[0])
        signed = next(m for m in self._maps if m.name == name).value
        negative = signed is not None and signed.members[0].kind == "i" and value >> 63
        return value - (1 << 64) if negative else value


def decoded(declared: Map, key: bytes) -> Key:
    """A key's numbers, by its layout."""
    members = declared.key.members if declared.key else ()
    return tuple(int.from_bytes(key[m.offset : m.offset + m.size], "little", signed=m.kind == "i") for m in members)
