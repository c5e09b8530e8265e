"""What the answers of a trace stand for: the line that every screen carries, and the block that begins the Overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.text import Text

from ..analyze.missing import after_the_ring
from .model import TraceInfo
from .page import text
from .times import count, share

GOOD, WARN, BAD, DIM = "#7bc96f", "#f9c74f", "#ff5f5f", "dim"


@dataclass(frozen=True)
class Trust:
    """Rows of `queries.TRUST` and `queries.LOSSES`. Counts are events, over closed intervals of the whole trace."""

    hooks: tuple[dict[str, Any], ...] = ()
    losses: tuple[dict[str, Any], ...] = ()

    @cached_property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """Of the programs whose rows the events are: of who records all, else who emitted some, else of every one.

        A monitor that only fills maps has rows of its own on the screen Monitors, and no part in the events.
        """
        whole = tuple(row for row in self.hooks if row["selection"] == "all")
        emitting = {row["program"] for row in self.hooks if row["emitted"]}
        return whole or tuple(row for row in self.hooks if row["program"] in emitting) or self.hooks

    @property
    def selections(self) -> list[str]:
        """What those programs' rows are, without repetition."""
        return list(dict.fromkeys(text(row["selection"]) or "unknown" for row in self.rows))

    def total(self, name: str) -> int:
        """A count over all hooks of those programs."""
        return sum(row[name] or 0 for row in self.rows)

    @property
    def maps_alone(self) -> bool:
        """Programs were to fill maps, and none emitted a row."""
        return bool(self.hooks) and not any(row["selection"] == "all" or row["emitted"] for row in self.hooks)

    @property
    def missing(self) -> int:
        """Eligible events that are in no row, as far as it is known."""
        return self.total("lost") + self.total("refused") + self.total("not_written") + self.after_the_ring

    @property
    def after_the_ring(self) -> int:
        """Rows of who records all that went between ring and trace: lost, refused, retired; of no known hook."""
        whole = any(row["selection"] == "all" for row in self.hooks)
        return sum(row["count"] for row in self.on_the_way) if whole else 0

    @property
    def on_the_way(self) -> list[dict[str, Any]]:
        """The losses of event rows between ring and trace."""
        return [row for row in self.losses if after_the_ring(row["kind"], _table(row["unit"]))]

    @property
    def damaged(self) -> bool:
        """Whether something is missing that could not be counted."""
        return any(row["severity"] == "damaged" for row in self.losses)


def line(trust: Trust, info: TraceInfo) -> Text:
    """Selection, coverage, loss and state, in one line."""
    out = Text(no_wrap=True, overflow="ellipsis")
    eligible = trust.total("eligible")
    if not trust.hooks:
        out.append("no coverage recorded: nothing is known of what is missing", WARN if info.events else DIM)
    else:
        if trust.maps_alone:
            out.append(f"no rows: maps alone, of {', '.join(dict.fromkeys(text(r['program']) for r in trust.rows))}")
        else:
            out.append(f"selection {', '.join(trust.selections)}", "" if trust.selections == ["all"] else WARN)
        out.append(" · ")
        if trust.maps_alone:
            out.append("their coverage is on Monitors", DIM)
        elif not eligible:
            out.append("nothing was eligible", DIM)
        else:
            style = GOOD if not trust.missing and not trust.damaged else WARN
            out.append(
                f"coverage {share(max(eligible - trust.missing, 0), eligible)} of {count(eligible)} events", style
            )
    if info.state != "sealed":
        out.append(" · ")
        out.append("recording" if info.recording else "unsealed", WARN)
    lost = [row for row in trust.losses if row["severity"] != "info"]
    for row in lost[:2]:
        out.append(" · ")
        out.append(f"{text(row['kind'])} {count(row['count'])} {text(row['unit'])}", BAD)
    if len(lost) > 2:
        out.append(f" and {len(lost) - 2} more kinds of loss", BAD)
    if not lost and not trust.missing:
        out.append(" · no loss known" if trust.hooks else "", DIM)
    for row in trust.on_the_way if not lost else ():
        out.append(f" · {text(row['kind'])} {count(row['count'])} {text(row['unit'])}", DIM)
    still_open = trust.total("open")
    if still_open:
        out.append(f" · {still_open:,} open intervals: eligible unknown there", WARN)
    left_out = [note for note in info.notes if not note.startswith("the trace is")]
    if left_out:
        out.append(f" · {text(left_out[0])}" + (f" and {len(left_out) - 1} more notes" if left_out[1:] else ""), WARN)
    return out


def block(trust: Trust, info: TraceInfo, width: int, height: int) -> Text:
    """The trust block of the Overview, as far as there is room: losses, coverage by hook where something is missing, of
    the programs whose rows the events are first, then notes.
    """
    lines = [_loss(row) for row in trust.losses if row["severity"] != "info"]
    of_events = {row["program"] for row in trust.rows}
    short = sorted((row for row in trust.hooks if _missing(row)), key=lambda row: row["program"] not in of_events)
    if trust.hooks and not short and not trust.after_the_ring:
        hooks = ", ".join(dict.fromkeys(text(row["hook"]) for row in (*trust.rows, *trust.hooks)))
        lines.append(Text.assemble(("complete at every hook: ", GOOD), hooks))
    several = len({row["program"] for row in trust.hooks}) > 1
    for row in short:
        eligible, gone = row["eligible"] or 0, _missing(row)
        ways = (("lost", row["lost"]), ("refused", row["refused"]), ("not written", row["not_written"]))
        lines.append(
            Text.assemble(
                (f"{text(row['hook']):<9}", "bold"),
                (f"{share(eligible - gone, eligible):>7}", WARN),
                f" of {count(eligible)} eligible; {', '.join(f'{way} {count(n)}' for way, n in ways if n)}"
                + (f"; {text(row['program'])}" if several else ""),
            )
        )
    lines += [_loss(row) for row in trust.losses if row["severity"] == "info"]
    lines += [Text(f"note: {text(note)}", WARN) for note in info.notes]
    if len(lines) > height:
        lines = [*lines[: height - 1], Text(f"and {len(lines) - height + 1} more: see coverage and loss in SQL", DIM)]
    for told in lines:
        told.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _loss(row: dict[str, Any]) -> Text:
    """How much was lost, where, and what is to be done."""
    return Text.assemble(
        (
            f"{text(row['kind'])} {count(row['count'])} {text(row['unit'])}",
            {"damaged": BAD, "degraded": WARN}.get(row["severity"], DIM),
        ),
        f": {text(row['place'])}; ",
        (text(row["todo"]), "italic"),
    )


def _table(unit: Any) -> str | None:
    """Of which table rows are, where the unit says so."""
    return text(unit).partition(" of ")[2] or None


def _missing(row: dict[str, Any]) -> int:
    return sum(row[name] or 0 for name in ("lost", "refused", "not_written"))


def trust_of(hooks: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]]) -> Trust:
    return Trust(tuple(hooks), tuple(losses))
