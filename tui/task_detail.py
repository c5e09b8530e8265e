"""What is known of one task, in words: its times, what it waited for last, and who released that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..store.tables import DEP_CLASSES
from .page import text
from .times import count, moment, task


def detail(found: dict[str, Any], releaser: Sequence[dict[str, Any]] | None, t_zero: int) -> Text:
    """Three lines. found: a row of `queries.TASK`. releaser: rows of `queries.RELEASER`, None until they are known."""
    told = Text()
    told.append(f"{task(found['task'])} {text(found['class'])}", "bold")
    for name in ("ready", "assign", "start", "complete"):
        told.append(f"  {name} ", "dim")
        told.append("–" if found[name] is None else moment(found[name] - t_zero))
    told.append("\nwaited last for ", "dim")
    if found["dep"]:
        kind = found["dep_class"] or 0
        told.append(text(found["dep_name"]) or f"dependency {found['dep']}", "bold")
        told.append(f" ({DEP_CLASSES[kind] if 0 <= kind < len(DEP_CLASSES) else kind}), ")
        told.append(f"released {count(found['wanted'])} times")
        if found["producer_class"]:
            told.append(f" by class {text(found['producer_class'])}")
    else:
        told.append("nothing, or it was not recorded")
    told.append("\nreleased by ", "dim")
    if found["released_by"]:
        told.append(task(found["released_by"]), "bold")
        if releaser is not None:
            told.append(_who(releaser[0]) if releaser else ", which is not in the trace")
        told.append("  d: go there  p: all producers", "dim")
    else:
        told.append("unknown" if found["dep"] else "–")
    return told


def _who(row: dict[str, Any]) -> str:
    where = "an unknown worker" if row["worker"] is None else f"worker {row['worker']}"
    return f" {text(row['class'])} on {where}"
