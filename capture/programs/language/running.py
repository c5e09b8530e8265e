"""The host's side of an attached query: what it prints as epochs close, in the engine's time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..execution import Export
from . import printing
from .answers import Answers
from .query import Clear, HostClause, Print, Query

_MISSING = ("throttled", "lost", "faulted")


class HostSide:
    """Feed it exports in the order of time; it gives the text to print.

    Intervals end at multiples of their length, as epochs do. Epochs are the grain: an interval's clauses run when the
    first epoch that ends at or past its end has closed.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.answers = Answers(query)
        self._due: dict[int, int] = {}
        self._partial: dict[tuple[int, ...], dict[str, None]] = {}
        """what was printed, by the counts of the events that it is of"""

    def begin(self, t: int) -> str:
        """The query is attached at t, ns."""
        self._due = {
            i: (t // c.period_ns + 1) * c.period_ns for i, c in enumerate(self.query.host) if c.when == "interval"
        }
        return self._all("begin")

    def counted(self, counts: Sequence[int]) -> None:
        """Events of a stretch of time that is closed next: eligible, observed, throttled, lost and faulted."""
        self.answers.count(counts)

    def take_notes(self) -> list[str]:
        """What is to be said of what was printed since the last call: of how many events it is, where not of all."""
        partial, self._partial = self._partial, {}
        out = []
        for (eligible, observed, *missing), what in partial.items():
            why = ", ".join(f"{name} {n:,}" for name, n in zip(_MISSING, missing, strict=True) if n)
            whose = ", ".join(what) or "it"
            out.append(f"{self.query.name}: {whose} saw {observed:,} of {eligible:,} events: {why}")
        return out

    def closed(self, exports: Iterable[Export], t_end: int, state: Iterable[Export] = ()) -> str:
        """An epoch that ends at t_end has closed on every worker. state: what maps that keep state hold, if known."""
        self.answers.add(exports)
        self.answers.add(state)
        out = []
        for spec in self.query.rows:
            of = self.answers.coverage(spec.map)
            out.append(printing.rows(self.answers, spec))
            if out[-1]:
                self._cover("printf", of)
        for i, due in self._due.items():
            if t_end >= due:
                clause = self.query.host[i]
                out.append(self._acted(clause))
                self._due[i] = (t_end // clause.period_ns + 1) * clause.period_ns
        return "".join(out)

    def end(self) -> str:
        """The query is detached: all epochs have closed."""
        out = self._all("end")
        self._cover("", self.answers.coverage())
        return out

    def _all(self, when: str) -> str:
        clauses: list[HostClause] = [c for c in self.query.host if c.when == when]
        return "".join(map(self._acted, clauses))

    def _acted(self, clause: HostClause) -> str:
        for s in clause.statements:
            if not isinstance(s, Clear):
                for name in [s.map] if isinstance(s, Print) else [a for a in s.args if isinstance(a, str)]:
                    self._cover(f"@{name}", self.answers.coverage(name))
        return printing.acted(clause, self.answers)

    def _cover(self, what: str, counts: tuple[int, ...]) -> None:
        if any(counts[-len(_MISSING) :]):
            self._partial.setdefault(counts, {}).update({what: None} if what else {})
