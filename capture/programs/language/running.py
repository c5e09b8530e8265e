"""The host's side of an attached query: what it prints as epochs close, in the engine's time."""

from __future__ import annotations

from collections.abc import Iterable

from ..execution import Export
from . import printing
from .answers import Answers
from .query import HostClause, Query


class HostSide:
    """Feed it exports in the order of time; it gives the text to print.

    Intervals end at multiples of their length, as epochs do. Epochs are the grain: an interval's clauses run when the
    first epoch that ends at or past its end has closed.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.answers = Answers(query)
        self._due: dict[int, int] = {}

    def begin(self, t: int) -> str:
        """The query is attached at t, ns."""
        self._due = {
            i: (t // c.period_ns + 1) * c.period_ns for i, c in enumerate(self.query.host) if c.when == "interval"
        }
        return self._all("begin")

    def closed(self, exports: Iterable[Export], t_end: int, state: Iterable[Export] = ()) -> str:
        """An epoch that ends at t_end has closed on every worker. state: what maps that keep state hold, if known."""
        self.answers.add(exports)
        self.answers.add(state)
        out = [printing.rows(self.answers, spec) for spec in self.query.rows]
        for i, due in self._due.items():
            if t_end >= due:
                clause = self.query.host[i]
                out.append(printing.acted(clause, self.answers))
                self._due[i] = (t_end // clause.period_ns + 1) * clause.period_ns
        return "".join(out)

    def end(self) -> str:
        """The query is detached: all epochs have closed."""
        return self._all("end")

    def _all(self, when: str) -> str:
        clauses: list[HostClause] = [c for c in self.query.host if c.when == when]
        return "".join(printing.acted(c, self.answers) for c in clauses)
