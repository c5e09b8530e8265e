"""Queries compiled, verified and run beside the oracle: what both say is compared to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from query_oracle import HOOKS, Oracle, words

from megascope.capture.programs import language
from megascope.capture.programs.execution import U64
from megascope.capture.programs.language.answers import decoded
from megascope.capture.programs.language.query import Query
from megascope.capture.programs.reference import Reference
from megascope.capture.programs.verdict import Verdict
from megascope.capture.programs.verifier import verify
from megascope.store.tables import (
    DEPENDENCIES,
    EVENT_ROW,
    REQUEST_SETS,
    REQUESTS,
    SIDE_TABLES,
    TASK_CLASSES,
    TILE_FIELDS,
    WORKERS,
)

WORKERS_RUN = 3
_CLASSES = [
    (1, "embed", "embed", -1), (2, "l00.attn", "attn", 0), (3, "l00.expert_up", "expert_up", 0),
    (4, "l00.expert_down", "expert_down", 0), (5, "l00.send", "send", 0), (6, "l01.attn", "attn", 1),
    (7, "l01.expert_up", "expert_up", 1), (8, "l01.expert_down", "expert_down", 1), (9, "l02.attn", "attn", 2),
    (11, "l03.attn", "attn", 3), (13, "l04.attn", "attn", 4), (15, "l05.attn", "attn", 5), (17, "sample", "sample", -1),
]  # fmt: skip
TABLES: dict[str, list[dict[str, Any]]] = {
    TASK_CLASSES.name: [dict(zip(("id", "name", "operator", "layer"), c, strict=True)) for c in _CLASSES],
    TILE_FIELDS.name: [
        *({"task_class": c, "name": "tile", "shift": 0, "bits": 16} for c in (3, 4, 7, 8)),
        *({"task_class": c, "name": "expert", "shift": 16, "bits": 8} for c in (3, 4, 7)),
        {"task_class": 8, "name": "expert", "shift": 20, "bits": 12},
        *({"task_class": c, "name": "slot", "shift": 0, "bits": 16} for c in (2, 6)),
        *({"task_class": c, "name": "head", "shift": 16, "bits": 16} for c in (2, 6)),
    ],
    DEPENDENCIES.name: [
        {"id": i, "name": f"attn[{i}]", "kind": 1, "producer_class": (2, -1, 3, 6)[i % 4]} for i in range(1, 12)
    ],
    REQUESTS.name: [{"request": i, "slot": i % 2, "external_id": f"req-{i // 2:03}"} for i in range(1, 9)],
    REQUEST_SETS.name: [{"request_set": s, "request": r} for s, r in ((1, 1), (1, 2), (2, 2), (5, 1), (9, 3), (12, 1))],
    WORKERS.name: [{"worker": i, "monitor": 0, "sm": i, "role": "compute", "rank": 0} for i in range(WORKERS_RUN)],
}
_EMPTY: dict[str, Any] = {"str": "", "strs": [], "u8s": [], "i64s": []}


def arrow(tables: Mapping[str, Sequence[Mapping[str, Any]]] = TABLES) -> dict[str, pa.Table]:
    """The tables as an engine gives them; what a row does not say is 0 or empty."""
    declared = {t.name: t for t in SIDE_TABLES}
    return {
        name: pa.table(
            {c.name: pa.array([r.get(c.name, _EMPTY.get(c.type, 0)) for r in of], c.arrow) for c in declared[name]}
        )
        for name, of in tables.items()
    }


def events(rng: np.random.Generator, n: int) -> list[dict[str, int]]:
    """Events that meet each other: few tasks, classes and deps, small times; and now and then extreme values."""
    seqs = [0] * WORKERS_RUN
    out = []
    for i in range(n):
        worker = int(rng.integers(WORKERS_RUN))
        seqs[worker] += 1
        hook = int(rng.integers(1, 14))
        t = 1000 * i + int(rng.integers(1000))
        time = max(0, t - int(rng.integers(-200, 60_000))) if rng.random() < 0.85 else 0
        high, low = int(rng.integers(9)), int(rng.integers(9))
        aux = time if hook in (3, 4, 6, 9, 11, 13) else high << 32 | low
        if hook == 2:
            aux = worker << 48 | high << 24 | low
        event = {
            "t": t, "seq": seqs[worker], "task": int(rng.integers(3)) << 32 | int(rng.integers(6)), "aux": aux,
            "request": int(rng.choice([0, 1, 2, 3, 17, 0x8000_0001, 0x8000_0002, 0x8000_0009, 0xFFFF_FFFF])),
            "step": int(rng.integers(3)), "dep": int(rng.integers(14)), "comm": int(rng.integers(3)),
            "tile": int(rng.integers(1 << 32)) & 0x0371_0003, "task_class": int(rng.integers(19)), "worker": worker,
            "sm": worker, "peer": int(rng.choice([0, 1, 0xFFFE, 0xFFFF])), "hook": hook,
            "dep_class": int(rng.integers(6)), "flags": int(rng.choice([0, 1, 2, 3, 0x80])), "rank": 0,
        }  # fmt: skip
        if rng.random() < 0.05:
            column = EVENT_ROW.columns[int(rng.integers(len(EVENT_ROW.columns)))]
            if column.name not in ("worker", "hook", "seq"):
                event[column.name] = (0, (1 << column.bits) - 1, 1 << column.bits - 1)[int(rng.integers(3))]
        out.append(event)
    return out


def rows(seen: Sequence[Mapping[str, int]]) -> U64:
    """[n, 8] words."""
    raw = b"".join(e[c.name].to_bytes(c.bits // 8, "little") for e in seen for c in EVENT_ROW)
    return np.frombuffer(raw, "<u8").reshape(len(seen), 8)


_ARROW = arrow()


class Run:
    """A query over events: as the verified program in the reference execution, and as the oracle sees it."""

    def __init__(
        self,
        text: str,
        seen: Sequence[Mapping[str, int]],
        *,
        tables: Mapping[str, Sequence[Mapping[str, Any]]] = TABLES,
        constants: Mapping[str, int] | None = None,
        feedback: Mapping[tuple[str, str, int | None], int] | None = None,
    ) -> None:
        self.query: Query = language.compile(text, _ARROW if tables is TABLES else arrow(tables), constants)
        self.verdict: Verdict = verify(self.query.program)
        self.execution = Reference(self.verdict, WORKERS_RUN, instrumented=True)
        self.oracle = Oracle(text, tables, constants)
        self._feed(feedback or {})
        words_of = rows(seen)
        by = np.zeros(len(words_of), np.uint32)
        self.execution.run(words_of, by, 0)
        self.emitted = [bool(b) for b in by]
        self.expected = [self.oracle.see(e) for e in seen]

    def _feed(self, feedback: Mapping[tuple[str, str, int | None], int]) -> None:
        self.oracle.feedback = dict(feedback)
        names = [m.name for m in self.query.program.maps]
        for cell in self.query.feedback:
            call = "total" if cell.quantile is None else "p" + f"{cell.quantile:.4f}"[2:].rstrip("0").ljust(2, "0")
            for (function, source, key), value in feedback.items():
                if (function, source) == (call, cell.source) and (key is not None) == cell.keyed:
                    self.execution.feed(names.index(cell.map), key or 0, value, 1)

    def check(self) -> None:
        """Emissions by event, and every map of every worker."""
        assert self.emitted == self.expected
        for index, declared in enumerate(self.query.program.maps):
            answer = next((a for a in self.query.answers if a.map == declared.name), None)
            if answer is None:
                continue
            for worker in range(WORKERS_RUN):
                export = self.execution.entries(index, worker)
                got = {
                    decoded(declared, k.tobytes()): tuple(map(int, v.view("<u8")))
                    for k, v in zip(export.keys, export.values, strict=True)
                }
                held = self.oracle.workers[worker].maps.get(declared.name, {}) if worker in self.oracle.workers else {}
                assert export.refused == 0
                assert got == {k: words(answer.what, v) for k, v in held.items()}, (declared.name, worker)


def checked(text: str, seen: Sequence[Mapping[str, int]], **how: Any) -> Run:
    """Run both and compare."""
    run = Run(text, seen, **how)
    run.check()
    return run


def at_hook(seen: Sequence[Mapping[str, int]], hook: str) -> list[Mapping[str, int]]:
    """Those of one hook."""
    return [e for e in seen if e["hook"] == HOOKS[hook]]
