"""What an answer stands for: a line per view that was read, with its selection, its coverage and its losses.

Counts are of the whole trace and of closed intervals. Of open ones, cut short by a death, only what was observed is
told: how much was eligible there is not known; nor is it behind the last cut of a trace whose recorder was killed.
Percentages are rounded down, so that 100 % means that nothing is missing; rows that cannot be read are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import duckdb

from . import map_coverage
from .catalogue import View
from .inputs import Inputs
from .missing import Account, Lost, account, event_rows, losses_of, recorder_of
from .text import printable

_STATE = {"recording": "trace still being recorded", "unsealed": "trace unsealed"}

_FLOW = """
    SELECT program, closed, count(*) AS rows, sum(eligible)::BIGINT AS eligible, sum(observed)::BIGINT AS observed,
        sum(throttled)::BIGINT AS throttled, sum(lost)::BIGINT AS lost, sum(faulted)::BIGINT AS faulted,
        sum(emitted)::BIGINT AS emitted, sum(written)::BIGINT AS written, sum(ring_lost)::BIGINT AS ring_lost,
        sum(emit_throttled)::BIGINT AS emit_throttled
    FROM stored_coverage GROUP BY program, closed
"""


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
        if any({"rows", "pairs"} & set(view.coverage) for view in views):
            notes = [*notes, *self._maps_alone]
        return told + [printable(f"trace: {note}") for note in notes] if told else []

    def _view(self, view: View) -> Iterator[str]:
        for kind in view.coverage:
            yield from self._of_kind(view, kind)

    def _of_kind(self, view: View, kind: str) -> Iterator[str]:
        match kind:
            case "rows" | "pairs":
                if self._no_rows:
                    yield self._line(view, [f"no rows: {self._no_rows}"])
                    return
                for program in self._emitters:
                    pairs = view.reads if kind == "pairs" else ()
                    unpaired = [self._unpaired(read) for read in pairs if read in ("tasks", "waits")]
                    yield self._line(view, [*self._rows(program, view), *unpaired])
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

    @cached_property
    def _no_rows(self) -> str:
        """Why there are no events, and what answers instead, where programs were to fill maps and emitted nothing."""
        programs, flow = self._trace.manifest["programs"], self._flow
        if not flow or self._event_rows or self._inputs.unreadable("events") or self._inputs.unreadable("coverage"):
            return ""
        if any(p["selection"] == "all" for p in programs) or any(f["emitted"] for f in flow.values()):
            return ""
        names = ", ".join(p["name"] for p in programs)
        return f"{names} emitted none; what their maps held is the answer" + (
            ", in " + ", ".join(self._trace.maps) if self._trace.maps else ""
        )

    @property
    def _maps_alone(self) -> list[str]:
        """Of which programs a trace without a recorder has maps and no rows, where others emitted some."""
        programs: list[dict[str, Any]] = self._trace.manifest["programs"]
        if self._no_rows or recorder_of(self._trace) is not None or not self._trace.maps:
            return []
        emitters = self._emitters
        some = ", ".join(p["name"] for p in programs if p in emitters)
        others = ", ".join(p["name"] for p in programs if p not in emitters)
        return [f"no rows but those of {some}: what the maps of {others} held is the answer"] if some and others else []

    def _line(self, view: View, parts: Iterable[str]) -> str:
        state = _STATE.get(self._trace.state)
        lost = [(sum(part.rows for part in self._inputs.unreadable(name)), name) for name in self._streams_of(view)]
        parts = [*parts, *(f"damaged: {rows:,} rows of {name} cannot be read" for rows, name in lost if rows)]
        damaged = [f"damaged: {x.kind} {x.count:,} {x.unit}" for x in self._losses if x.severity == "damaged"]
        told = [p for p in parts if p] + damaged + ([state] if state else [])
        return printable(f"{view.name}: {' · '.join(told)}")

    def _streams_of(self, view: View) -> list[str]:
        """What the view reads that can be incomplete for itself; whatever it reads, it stands on the events."""
        named = [name for name in view.reads if name in self._inputs.streams]
        events = ["events"] if {"rows", "pairs"} & set(view.coverage) else []
        return list(dict.fromkeys([*events, *named]))

    def _rows(self, program: dict[str, Any] | None, view: View) -> Iterator[str]:
        """Selection, coverage and what else is to be said of one program's rows in a view."""
        selection = program["selection"] if program else "unknown"
        whole = selection == "all"
        yield f"selection {selection}" + ("" if whole or not program else ": rows are no population")
        closed = self._flow.get((program["program"], True)) if program else None
        still_open = self._flow.get((program["program"], False)) if program else None
        found = self.account if program and program["program"] == recorder_of(self._trace) else None
        uncounted = self._without(("coverage", "loss"))
        if "coverage" in uncounted:
            # Without it rows seem to be of no interval that are.
            found = None
        if uncounted:
            yield f"coverage unknown: {uncounted}"
        elif closed is None:
            yield "coverage unknown: no interval was closed"
        elif closed["eligible"] == 0:
            yield "coverage: nothing was eligible"
        else:
            unreadable = sum(part.rows for part in self._inputs.unreadable("events"))
            kept = closed["observed"]
            if whole:
                after = sum(x.count for x in self._after_the_ring)
                kept = closed["written"] - after
            kept -= unreadable + (found.unaccounted if found else 0)
            share = percent(*self._readable(view, max(kept, 0), closed["eligible"]))
            of = "closed intervals" if still_open or (found and found.open_from is not None) else "the whole trace"
            yield f"coverage {share} of {of} ({self._flow_text(closed, whole, unreadable)})"
            if found and found.unaccounted:
                yield f"damaged: {found.unaccounted:,} rows were written, are not in the trace and in no count of loss"
        if still_open is not None:
            yield f"{still_open['rows']:,} open intervals apart: observed {still_open['observed']:,}, eligible unknown"
        if found and found.open_from is not None and (found.behind or still_open is None):
            yield self._behind(found)

    def _without(self, names: Iterable[str]) -> str:
        """Of which of these streams rows are not to be had; empty where none are missing."""
        names = list(names)
        gone = {x.table for x in self._losses}
        told = [(" and ".join(n for n in names if self._inputs.unreadable(n)), "cannot be read")]
        told += [(" and ".join(n for n in names if n in gone), "are gone")]
        return ", ".join(f"rows of {some} {why}" for some, why in told if some)

    def _behind(self, found: Account) -> str:
        if not found.behind:
            return "what came after the last cut is in no closed interval: what is missing there is not known"
        return f"{found.behind:,} rows lie in intervals that nobody closed: what is missing there is not known"

    def _readable(self, view: View, kept: int, whole: int) -> tuple[int, int]:
        """A share as (part, whole), less what cannot be read of the other streams that the view puts together."""
        for name in self._streams_of(view):
            if name == "events" or not (lost := sum(part.rows for part in self._inputs.unreadable(name))):
                continue
            there = sum(part.rows for part in self._inputs.parts(name)) + self._inputs.tail(name).num_rows
            # Nobody knows whether the same rows are missing twice: all of both are.
            kept, whole = max(kept * (there + lost) - lost * whole, 0), whole * (there + lost)
        return kept, whole

    def _flow_text(self, flow: dict[str, int], whole: bool, unreadable: int = 0) -> str:
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
        return out + (f", {unreadable:,} in parts that cannot be read" if unreadable else "")

    def _of_map(self, stream: str) -> Iterator[list[str]]:
        """For each program whose map it is: what it observed where the rows are from, and what the map refused."""
        self._store(stream)
        self._store("coverage")
        programs = {p["program"]: p for p in self._trace.manifest["programs"]}
        full = sum(x.count for x in self._losses if x.kind == "map_full")
        without = self._without(("coverage", stream))
        found = map_coverage.of_rows(self._con, stream, self._trace.manifest)
        if without and not found:
            yield ["no rows", f"coverage unknown: {without}"]
        for of in found:
            name = programs.get(of.program, {}).get("name", "unknown")
            parts = [f"{of.rows:,} rows of program {name} ({of.program})"]
            if without:
                parts.append(f"coverage unknown: {without}")
            elif of.flow is None:
                parts.append(f"coverage unknown: no interval of {of.epochs} was closed")
            else:
                where = f"of {of.epochs}" if of.apart else "while it was attached"
                share = percent(of.flow["observed"], of.flow["eligible"])
                parts.append(f"coverage {share} {where} ({self._flow_text(of.flow, False)})")
            if of.unknown:
                parts.append(f"coverage unknown of {' and '.join(of.unknown)}")
            if of.apart:
                parts.append(f"no rows of {' and '.join(of.apart)}: what it counted there is not in this trace")
            if (of.program, False) in self._flow or (not without and self.account.open_from is not None):
                parts.append("its last interval is open: eligible unknown there")
            if full:
                parts.append(f"map_full {full:,} in all maps")
            yield parts

    def _open(self, stream: str) -> str:
        self._store(stream)
        closed, still_open = self._con.execute(
            f"SELECT count(*) FILTER (WHERE closed), count(*) FILTER (WHERE NOT closed) FROM stored_{stream}"
        ).fetchall()[0]
        if without := self._without((stream,)):
            return f"{closed:,} rows closed, {still_open:,} open; {without}"
        if not still_open and self.account.open_from is not None:
            return f"{closed:,} rows, all closed; what came after the last cut is in none of them"
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
    def _after_the_ring(self) -> list[Lost]:
        """Rows lost between the ring and the trace. Queue and ring have their own columns in `coverage`."""
        return [x for x in self._losses if x.after_the_ring]

    @cached_property
    def _losses(self) -> list[Lost]:
        self._store("loss")
        return [x for x in losses_of(self._con) if x.count]

    @cached_property
    def _flow(self) -> dict[tuple[int, bool], dict[str, int]]:
        self._store("coverage")
        rows = self._con.execute(_FLOW)
        names = [column[0] for column in rows.description or ()]
        found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
        return {(row["program"], row["closed"]): row for row in found}

    @cached_property
    def account(self) -> Account:
        """What became of the recorder's rows, of the whole trace: read once, as it may take a look at every event."""
        return account(self._con, self._inputs)

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
