"""Programs, verdicts and rows made by hand, for tests that want no verifier between them and an execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from megascope.capture.programs.assembler import assemble_labelled
from megascope.capture.programs.execution import U64
from megascope.capture.programs.maps import Map, MapKind
from megascope.capture.programs.program import Entry, Function, Program
from megascope.capture.programs.verdict import Verdict
from megascope.store.tables import EVENT_ROW, HOOK_BY_NAME

COMPLETE = HOOK_BY_NAME["complete"].id


def a_map(kind: MapKind, name: str = "m", key: int = 4, value: int = 8, entries: int = 8, **rest: bool | bytes) -> Map:
    return Map(name, kind, key, value, entries, **rest)  # type: ignore[arg-type]


def program(text: str, *maps: Map, hooks: Mapping[str, tuple[int, ...]] | None = None) -> Program:
    """Entries at labels: by label, the hooks; otherwise the first slot for `complete`. Labels are functions."""
    made = assemble_labelled(text, {m.name: i for i, m in enumerate(maps)})
    entries = [Entry(name, of, made.labels[name]) for name, of in (hooks or {}).items()]
    functions = tuple(Function(pc, name) for name, pc in made.labels.items() if hooks and name in hooks)
    return Program("p", made.insns, tuple(entries) or (Entry("p", (COMPLETE,), 0),), maps, functions)


def trusted(p: Program, cost: Mapping[int, int] | int = 1000, **rest: object) -> Verdict:
    """A verdict that promises nothing: runs may cost `cost` (by hook), frames are as large as a stack may be."""
    nothing = {
        "access": {},
        "call_maps": {},
        "reachable": frozenset(range(len(p.insns))),
        "columns": frozenset(),
        "cost": {h: cost if isinstance(cost, int) else cost[h] for e in p.entries for h in e.hooks},
        "batch_cost": {},
        "serial_because": "by hand",
        "serial_pc": 0,
        "stack": 256,
        "frames": {},
        "emits": True,
        "states": 0,
    }
    return Verdict(p, **nothing | rest)  # type: ignore[arg-type]


def rows(events: Iterable[Mapping[str, int]]) -> U64:
    """[n, 8] words. What an event does not say is 0; hook: complete; seq counts by worker."""
    given = list(events)
    out = np.zeros(len(given), EVENT_ROW.dtype)
    seqs: dict[int, int] = {}
    for i, event in enumerate(given):
        worker = event.get("worker", 0)
        seqs[worker] = seqs.get(worker, 0) + 1
        for name, value in ({"hook": COMPLETE, "seq": seqs[worker]} | event).items():
            out[i][name] = value
    return out.view(np.uint64).reshape(len(given), 8)
