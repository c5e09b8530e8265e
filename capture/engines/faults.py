"""Fault controls: ways to make a run slow on purpose, so that a diagnosis can be judged against what was injected.

Each control is written `kind=target:strength`, with `@from-to` (steps, inclusive) for a window, several by comma:

    delay=CLASS:FACTOR          tasks of the class take FACTOR times as long; `*.attn` for that operator in every layer
    skew=EXPERT:SHARE           that share of all routing choices goes to the expert instead (mixture of experts)
    postpone=TENSOR[I]:NS       whoever waits on the dependency learns NS late that it is satisfied
    oversubscribe=WORKER:SHARE  that share of its rank's assignments goes to the worker, busy or not, while its
                                queue has room (dynamic schedule)
    comm=ROUND:NS               the data of the communication round arrives NS late on every rank (several ranks);
                                ROUND is a number or a class name such as `l01.attn_send`
    starve=CLASS/I:NS           the class's task number I (from 0, on rank 0) is ready, but nobody takes it up for NS

What was injected is returned to the caller as `GroundTruth`, and never enters the trace.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from ...store.errors import Usage
from .graph import SENDS, Graph

KINDS = {
    "delay": "CLASS:FACTOR",
    "skew": "EXPERT:SHARE",
    "postpone": "TENSOR[I]:NS",
    "oversubscribe": "WORKER:SHARE",
    "comm": "ROUND:NS",
    "starve": "CLASS/I:NS",
}
FOREVER = (1 << 31) - 1
_FORM = re.compile(r"(?P<target>[^:@]+):(?P<strength>[0-9.eE+]+)(?:@(?P<first>\d+)-(?P<last>\d*))?")
_MOST_NS = 10**12


@dataclass(frozen=True)
class Fault:
    """One control. strength: a factor, a share of 1, or ns, by kind; active in steps first … last."""

    kind: str
    target: str
    strength: float
    first: int = 0
    last: int = FOREVER

    def __str__(self) -> str:
        last = "" if self.last == FOREVER else str(self.last)
        window = f"@{self.first}-{last}" if (self.first, self.last) != (0, FOREVER) else ""
        return f"{self.kind}={self.target}:{self.strength:g}{window}"


@dataclass(frozen=True)
class Injection:
    """What one control touched in every step of its window: ids of the graph, empty where it touches none."""

    fault: Fault
    tasks: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()
    deps: tuple[int, ...] = ()
    rounds: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    intervals: tuple[tuple[int, int, int, int], ...] = ()
    """(first step, last step, t of the first's begin, t of the last's end in ns) in which it was active"""


GroundTruth = tuple[Injection, ...]


@dataclass(frozen=True)
class Faults:
    """The controls of a run, as given. `Faults.parse("delay=l01.attn:3,comm=0:20000@10-19")`."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Raises Usage for an unknown kind or a malformed control."""
        return cls(tuple(parse_fault(*part.partition("=")[::2]) for part in text.split(",") if part.strip()))

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __bool__(self) -> bool:
        return bool(self.faults)


def parse_fault(kind: str, value: str) -> Fault:
    """One control from its kind and `target:strength[@from-to]`.

    Raises Usage when it is unknown or malformed.
    """
    kind = kind.strip()
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, 1)
        raise Usage(f"unknown fault control {kind}", "there is none of that name", _suggest(close, KINDS))
    match = _FORM.fullmatch(value.strip())
    what = f"cannot read {kind}={value}"
    if not match:
        raise Usage(what, f"it is not {KINDS[kind]}[@from-to]", f"write for example {kind}={KINDS[kind]}")
    first, last = int(match["first"] or 0), int(match["last"] or FOREVER)
    try:
        strength = float(match["strength"])
    except ValueError as e:
        raise Usage(what, f"{match['strength']} is no number", f"write {kind}={KINDS[kind]}") from e
    most = {"delay": 1e6, "skew": 1, "oversubscribe": 1}.get(kind, _MOST_NS)
    if not 0 <= strength <= most:
        raise Usage(what, f"strength {strength:g} is outside 0 to {most:g}", "choose another")
    if not first <= last <= FOREVER:
        raise Usage(what, f"its window ends before it begins ({first}-{last})", "write @from-to in steps")
    return Fault(kind, match["target"].strip(), strength, first, last)


@dataclass(frozen=True)
class Active:
    """The controls in force at a step, as arrays that an engine applies. Neutral: factor 1, share 0, 0 ns."""

    class_factor: NDArray[np.float64]
    """by task_class: multiplies the duration"""
    dep_postpone_ns: NDArray[np.int64]
    """by dep: between the satisfying release and its taking effect for whoever waits"""
    round_delay_ns: NDArray[np.int64]
    """by round of the iteration (at least one entry): added to the link's latency"""
    task_starve_ns: NDArray[np.int64]
    """by task: between its being ready and its being offered to a worker; static: between pick and start"""
    over_worker: int
    """worker id over all ranks, -1 none"""
    over_share: float
    skew_expert: int
    """-1 none"""
    skew_share: float


class Injector:
    """Faults resolved against a graph, for an engine with given schedule and workers.

    Raises Usage, naming the control, when a target does not exist or this engine or model cannot apply it.
    """

    def __init__(self, faults: Faults, graph: Graph, workers: int, *, dynamic: bool, engine: str = "host") -> None:
        self._graph, self._workers, self._dynamic, self._engine = graph, workers, dynamic, engine
        self.injections = [self._resolve(f) for f in faults]
        edges = {0} | {f.first for f in faults} | {f.last + 1 for f in faults}
        self._edges = sorted(edges)
        self._intervals: list[list[tuple[int, int, int, int]]] = [[] for _ in self.injections]
        self._cached: tuple[int, Active] | None = None

    def active(self, step: int) -> Active:
        """What is in force at a step; the same object until that changes."""
        at = int(np.searchsorted(self._edges, step, side="right"))
        if self._cached is None or self._cached[0] != at:
            self._cached = at, self._arrays(step)
        return self._cached[1]

    def ran(self, step: int, t_begin: int, t_end: int) -> None:
        """Step `step` was executed from t_begin to t_end (ns)."""
        for injection, intervals in zip(self.injections, self._intervals, strict=True):
            if not injection.fault.first <= step <= injection.fault.last:
                continue
            if intervals and intervals[-1][1] == step - 1:
                intervals[-1] = (intervals[-1][0], step, intervals[-1][2], t_end)
            else:
                intervals.append((step, step, t_begin, t_end))

    def truth(self) -> GroundTruth:
        """What was injected so far."""
        return tuple(
            Injection(**{**vars(i), "intervals": tuple(at)})
            for i, at in zip(self.injections, self._intervals, strict=True)
        )

    def _arrays(self, step: int) -> Active:
        g = self._graph
        factor, starve = np.ones(len(g.classes)), np.zeros(g.tasks + 1, np.int64)
        postpone, late = np.zeros(g.deps + 1, np.int64), np.zeros(max(g.model.rounds, 1), np.int64)
        worker, over, expert, skew = -1, 0.0, -1, 0.0
        for injection in self.injections:
            fault = injection.fault
            if not fault.first <= step <= fault.last:
                continue
            if fault.kind == "delay":
                factor[list(injection.classes)] *= fault.strength
            elif fault.kind == "postpone":
                postpone[list(injection.deps)] += int(fault.strength)
            elif fault.kind == "comm":
                late[list(injection.rounds)] += int(fault.strength)
            elif fault.kind == "starve":
                starve[list(injection.tasks)] += int(fault.strength)
            elif fault.kind == "oversubscribe":
                worker, over = injection.workers[0], fault.strength
            else:
                expert, skew = injection.experts[0], fault.strength
        return Active(factor, postpone, late, starve, worker, over, expert, skew)

    def _resolve(self, fault: Fault) -> Injection:
        match fault.kind:
            case "delay":
                classes = self._classes(fault, fault.target)
                tasks = np.nonzero(np.isin(self._graph.task_class, classes))[0]
                return Injection(fault, classes=classes, tasks=tuple(tasks.tolist()))
            case "postpone":
                return self._postpone(fault)
            case "comm":
                return self._comm(fault)
            case "starve":
                return self._starve(fault)
            case "oversubscribe":
                if not self._dynamic:
                    self._refuse(fault, "a static schedule has no queues", "use schedule=dynamic")
                return Injection(fault, workers=(self._number(fault, "worker", self._workers),))
            case _:
                return self._skew(fault)

    def _postpone(self, fault: Fault) -> Injection:
        g = self._graph
        ids: dict[str, list[int]] = {}
        for tensor in g.tensors:
            for dep in range(tensor.first, tensor.first + int(np.prod(tensor.shape, dtype=np.int64))):
                for name in {g.dep_name(dep), g.dep_name(dep).partition("@")[0], tensor.name}:
                    ids.setdefault(name, []).append(dep)
        deps = self._find(fault, fault.target, ids)
        return Injection(fault, deps=tuple(deps), tasks=tuple(int(t) for d in deps for t in g.waiters(d)))

    def _comm(self, fault: Fault) -> Injection:
        g = self._graph
        if g.model.ranks < 2:
            self._refuse(fault, "a model on one rank has no communication", "use ranks=2 or more")
        names = {g.classes[g.task_class[t]].name: [int(g.round[t])] for t in np.nonzero(np.isin(g.op, SENDS))[0]}
        names |= {str(r): [r] for r in range(g.model.rounds)}
        rounds = self._find(fault, fault.target, names)
        tasks = np.nonzero(np.isin(g.round, rounds))[0]
        return Injection(fault, rounds=tuple(rounds), tasks=tuple(tasks.tolist()))

    def _starve(self, fault: Fault) -> Injection:
        g = self._graph
        name, _, number = fault.target.partition("/")
        (cls,) = self._classes(fault, name)[:1]
        tasks = np.nonzero((g.task_class == cls) & (g.rank == 0))[0]
        if not (number or "0").isdigit() or int(number or 0) >= len(tasks):
            self._refuse(fault, f"{name} has no task {number}", f"choose 0 to {len(tasks) - 1}")
        return Injection(fault, tasks=(int(tasks[int(number or 0)]),))

    def _skew(self, fault: Fault) -> Injection:
        g = self._graph
        if not g.model.experts:
            self._refuse(fault, "a dense model has no routing", "use experts=8 or more")
        expert = self._number(fault, "expert", g.model.experts)
        return Injection(fault, experts=(expert,), tasks=tuple(np.nonzero(g.expert == expert)[0].tolist()))

    def _classes(self, fault: Fault, pattern: str) -> tuple[int, ...]:
        names = {c.name: [i] for i, c in enumerate(self._graph.classes) if i}
        matching = {i for name, (i,) in names.items() if fnmatchcase(name, pattern)}
        return tuple(sorted(matching)) or tuple(self._find(fault, pattern, names))

    def _number(self, fault: Fault, what: str, below: int) -> int:
        if not fault.target.isdigit() or int(fault.target) >= below:
            self._refuse(fault, f"there is no {what} {fault.target}", f"choose 0 to {below - 1}")
        return int(fault.target)

    def _find(self, fault: Fault, name: str, ids: dict[str, list[int]]) -> list[int]:
        if name not in ids:
            self._refuse(fault, f"there is no {name}", _suggest(difflib.get_close_matches(name, ids, 1), ids))
        return ids[name]

    def _refuse(self, fault: Fault, why: str, todo: str) -> None:
        raise Usage(f"the {self._engine} engine cannot apply {fault}", why, todo)


def _suggest(close: list[str], known: Iterable[str]) -> str:
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(list(known)[:8])}"
