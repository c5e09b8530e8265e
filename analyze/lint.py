"""Judging an integration by what it recorded: every rule of `lint_rules` over one trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lint_rules import RULES, Rule
from .session import Session

PLACES = 5
"""Places named of one rule; the rest is counted."""


@dataclass(frozen=True)
class Finding:
    """A rule that is not kept: where, at which device time first (ns; None without one), and how often."""

    rule: Rule
    place: str
    t: int | None
    cases: int


@dataclass(frozen=True)
class Verdict:
    """`findings` by rule; `not_judged`: rules left out because events are missing; `loss`: what is missing."""

    findings: list[Finding]
    not_judged: list[str]
    loss: str
    rules: int


def lint(path: Path) -> Verdict:
    """Hold a trace against every rule.

    Raises Refused where the trace cannot be opened.
    """
    findings: list[Finding] = []
    left_out: list[str] = []
    with Session.open(path) as session:
        loss = _loss(session)
        for rule in RULES:
            if rule.whole and loss:
                left_out.append(rule.name)
                continue
            for row in _rows(session, rule.sql):
                findings.append(Finding(rule, str(row["place"]), row["t"], int(row["n"])))
    return Verdict(findings, left_out, loss, len(RULES))


def _rows(session: Session, sql: str) -> list[dict[str, Any]]:
    with session.run(sql) as result:
        rows: list[dict[str, Any]] = result.read_all().to_pylist()
    return rows


def _loss(session: Session) -> str:
    """What is missing of the events, in one line; empty where nothing is."""
    # Rows that one program's limit held back are in the trace all the same where another has recorded every event.
    missing = _rows(
        session,
        "WITH whole AS (FROM coverage WHERE program IN (SELECT program FROM programs WHERE selection = 'all')), "
        "its AS (FROM whole UNION ALL FROM coverage WHERE NOT EXISTS (FROM whole)) "
        "SELECT coalesce(sum(lost + throttled + faulted), 0) AS queue, "
        "coalesce(sum(ring_lost + emit_throttled), 0) AS ring, count(*) FILTER (NOT closed) AS open FROM its",
    )[0]
    after = _rows(session, "SELECT coalesce(sum(count), 0) AS n FROM loss WHERE severity <> 'info' AND unit = 'rows'")
    parts = [
        f"{n:,} {what}"
        for n, what in (
            (missing["queue"], "events lost before their monitor"),
            (missing["ring"], "rows lost in the ring"),
            (after[0]["n"], "rows lost after it"),
            (missing["open"], "open intervals"),
        )
        if n
    ]
    return ", ".join(parts)
