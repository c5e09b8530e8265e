"""What an answer stands for: a line per view that was read, with its selection, its coverage and its losses.

Counts are of the whole trace and of closed intervals. Of open ones, cut short by a death, only what was observed is
told: how much was eligible there is not known. Percentages are rounded down, so that 100 % means that nothing is
missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb

from ..store.loss import LOSS_BY_NAME
from .catalogue import View
from .inputs import Inputs
from .missing import after_the_ring, event_rows
from .text import printable

_STATE = {"recording": "trace still being recorded", "unsealed": "trace unsealed"}

_FLOW = """
    SELECT program, closed, count(*) AS rows, sum(eligible)::BIGINT AS eligible, sum(observed)::BIGINT AS observed,
        sum(throttled)::BIGINT AS throttled, sum(lost)::BIGINT AS lost, sum(faulted)::BIGINT AS faulted,
        sum(emitted)::BIGINT AS emitted, sum(written)::BIGINT AS written, sum(ring_lost)::BIGINT AS ring_lost,
        sum(emit_throttled)::BIGINT AS emit_throttled
    FROM stored_coverage GROUP BY program, closed
"""


@dataclass(frozen=True)
class _Loss:
    kind: str
    count: int

    @property
    def unit(self) -> str:
        return LOSS_BY_NAME[self.kind].unit if self.kind in LOSS_BY_NAME else "rows"

    @property
    def severity(self) -> str:
        return LOSS_BY_NAME[self.kind].severity if self.kind in LOSS_BY_NAME else "damaged"


class Coverage:
    """A trace's coverage and loss, read once when first asked."""

    def __init__(self, con: duckdb.DuckDBPyConnection, inputs: Inputs) -> None:
        """`con` is used for reading and must not be the one that runs a user's query."""
        self._con, self._inputs, self._trace = con, inputs, inputs.trace
        self._stored: set[str] = set()

    def lines(self, views: Iterable[View]) -> list[str]:
        """One line per view that can be incomplete, then one per thing known to be wrong with the trace's files.

        Raises duckdb.Error and what Trace raises for parts that cannot be read.
        """
        views = list(views)
        told = [line for view in views for line in self._view(view)]
        # The first note of an unsealed trace says so, as does every line.
        notes = self._trace.notes[1 if self._trace.state in _STATE else 0 :]
        if self._inputs.unverified_bytes:
            size = f"{self._inputs.unverified_bytes / 1e6:,.0f} MB"
            notes = [*notes, f"checksums of {size} were not compared; megascope check does"]
        return told + [printable(f"trace: {note}") for note in notes] if told else []

    def _view(self, view: View) -> Iterator[str]:
        for kind in view.coverage:
            yield from self._of_kind(view, kind)

    def _of_kind(self, view: View, kind: str) -> Iterator[str]:
        match kind:
            case "rows":
                for program in self._emitters:
                    yield self._line(view, self._rows(program))
            case "pairs":
                for program in self._emitters:
                    yield self._line(
                        view,
                        [
                            *self._rows(program),
                            *(self._unpaired(read) for read in view.reads if read in ("tasks", "waits")),
                        ],
                    )
            case "intervals":
                yield self._line(view, [self._open(view.name)])
            case "maps":
                yield from (self._line(view, parts) for parts in self._of_map(view.name))
            case "workers":
                yield self._line(view, [f"{self._count('now'):,} workers"])
            case "loss":
                yield self._line(view, [self._all_losses()])
            case "host_ring":
                lost = sum(x.count for x in self._losses if x.kind == "host_ring_overwritten")
                yield self._line(view, [f"as the engine told; {lost:,} bytes of it were overwritten unread"])

    @property
    def _emitters(self) -> list[dict[str, Any] | None]:
        """Programs whose rows can be among the events: those that only fill maps are not; all, where none emitted."""
        programs: list[dict[str, Any]] = self._trace.manifest["programs"]
        flow = self._flow
        some = [p for p in programs if any(flow.get((p["program"], c), {}).get("emitted") for c in (True, False))]
        return [p for p in programs if p in some or p["selection"] == "all"] or [*programs] or [None]

    def _line(self, view: View, parts: Iterable[str]) -> str:
        state = _STATE.get(self._trace.state)
        damaged = [f"damaged: {x.kind} {x.count:,} {x.unit}" for x in self._losses if x.severity == "damaged"]
        told = [p for p in parts if p] + damaged + ([state] if state else [])
        return printable(f"{view.name}: {' · '.join(told)}")

    def _rows(self, program: dict[str, Any] | None) -> Iterator[str]:
        """Selection, coverage and what else is to be said of one program's rows."""
        selection = program["selection"] if program else "unknown"
        whole = selection == "all"
        yield f"selection {selection}" + ("" if whole or not program else ": rows are no population")
        closed = self._flow.get((program["program"], True)) if program else None
        still_open = self._flow.get((program["program"], False)) if program else None
        after = sum(x.count for x in self._after_the_ring) if whole else 0
        if closed is None:
            yield "coverage unknown: no interval was closed"
        elif closed["eligible"] == 0:
            yield "coverage: nothing was eligible"
        else:
            kept = max(closed["written"] - after, 0) if whole else closed["observed"]
            yield f"coverage {percent(kept, closed['eligible'])} of the whole trace ({self._flow_text(closed, whole)})"
            missing = closed["written"] - after - self._event_rows
            if whole and missing > 0:
                yield f"damaged: {missing:,} rows were written, are not in the trace and in no count of loss"
        if still_open is not None:
            yield f"{still_open['rows']:,} open intervals apart: observed {still_open['observed']:,}, eligible unknown"

    def _flow_text(self, flow: dict[str, int], whole: bool) -> str:
        out = f"observed {flow['observed']:,} of {flow['eligible']:,} eligible; "
        out += f"lost {flow['lost']:,} in worker queues, {flow['ring_lost']:,} in the ring"
        for key, text in (
            ("throttled", "throttled"),
            ("faulted", "faulted"),
            ("emit_throttled", "over the emit limit"),
        ):
            if flow[key]:
                out += f", {flow[key]:,} {text}"
        if whole:
            out += "".join(f", {x.count:,} {x.kind}" for x in self._after_the_ring)
        return out

    def _of_map(self, stream: str) -> Iterator[list[str]]:
        """For each program whose map it is: what it observed while it was attached, and what the map refused."""
        self._store(stream)
        counted = f'SELECT program, count(*) FROM "stored_{stream}" GROUP BY program ORDER BY program'
        rows = self._con.execute(counted).fetchall()
        programs = {p["program"]: p for p in self._trace.manifest["programs"]}
        full = sum(x.count for x in self._losses if x.kind == "map_full")
        for program, count in rows:
            name = programs.get(program, {}).get("name", "unknown")
            parts = [f"{count:,} rows of program {name} ({program})"]
            closed = self._flow.get((program, True))
            if closed is None or not closed["eligible"]:
                parts.append("coverage unknown: no interval was closed")
            else:
                share = percent(closed["observed"], closed["eligible"])
                parts.append(f"coverage {share} while it was attached ({self._flow_text(closed, False)})")
            if (program, False) in self._flow:
                parts.append("its last interval is open: eligible unknown there")
            if full:
                parts.append(f"map_full {full:,} in all maps")
            yield parts

    def _open(self, stream: str) -> str:
        self._store(stream)
        closed, still_open = self._con.execute(
            f"SELECT count(*) FILTER (WHERE closed), count(*) FILTER (WHERE NOT closed) FROM stored_{stream}"
        ).fetchall()[0]
        if not still_open:
            return f"{closed:,} rows, all closed"
        return f"{closed:,} rows closed, {still_open:,} open: nothing is claimed of what was eligible there"

    def _unpaired(self, stream: str) -> str:
        self._store(stream)
        rows, halves = self._con.execute(
            f"SELECT count(*), count(*) FILTER (WHERE missing <> 0) FROM stored_{stream}"
        ).fetchall()[0]
        return f"of {rows:,} {stream}, {halves:,} lack an event"

    def _all_losses(self) -> str:
        if not self._losses:
            return "no loss is known"
        return "known losses: " + ", ".join(f"{x.kind} {x.count:,} {x.unit}" for x in self._losses)

    @property
    def _after_the_ring(self) -> list[_Loss]:
        """Rows lost between the ring and the trace. Queue and ring have their own columns in `coverage`."""
        return [x for x in self._losses if after_the_ring(x.kind)]

    @cached_property
    def _losses(self) -> list[_Loss]:
        self._store("loss")
        rows = self._con.execute("SELECT kind, sum(count)::BIGINT FROM stored_loss GROUP BY kind ORDER BY kind")
        return [_Loss(kind, count) for kind, count in rows.fetchall() if count]

    @cached_property
    def _flow(self) -> dict[tuple[int, bool], dict[str, int]]:
        self._store("coverage")
        rows = self._con.execute(_FLOW)
        names = [column[0] for column in rows.description or ()]
        found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
        return {(row["program"], row["closed"]): row for row in found}

    @cached_property
    def _event_rows(self) -> int:
        return event_rows(self._inputs)

    def _count(self, stream: str) -> int:
        self._store(stream)
        return int(self._con.execute(f"SELECT count(*) FROM stored_{stream}").fetchall()[0][0])

    def _store(self, stream: str) -> None:
        if stream not in self._stored:
            self._inputs.store(self._con, stream)
            self._stored.add(stream)


def percent(part: int, whole: int) -> str:
    """`part` of `whole` in per cent, rounded down to hundredths: 100 % only where nothing is missing."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100} %" if hundredths % 100 == 0 else f"{hundredths / 100:.2f} %"
