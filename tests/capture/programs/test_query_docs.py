"""docs/query.md: every example is a query, runs, and prints what stands below it; every field is in its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from query_session import Session

from megascope.capture.programs import image
from megascope.capture.programs.language.expressions import AGGREGATES
from megascope.capture.programs.language.fields import DERIVED, ROW
from megascope.capture.programs.language.literals import UNITS
from megascope.store.tables import HOOKS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "query.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```query\n(.*?)```\n(?:```text\n(.*?)```)?", TEXT, re.DOTALL)


@pytest.mark.parametrize(("query", "printed"), EXAMPLES, ids=[" ".join(q.split())[:60] for q, _ in EXAMPLES])
def test_an_example_prints_what_stands_there(query: str, printed: str) -> None:
    session = Session(query)
    if printed:
        assert session.text == printed
    assert image.unpack(image.pack(session.query.program)) == session.query.program
    assert session.verdict.simt == ("++" not in query and "delete" not in query)


def test_every_example_was_found() -> None:
    assert len(EXAMPLES) == TEXT.count("```query") > 20
    assert TEXT.count("```text") == sum(1 for _, printed in EXAMPLES if printed)


def test_every_field_and_function_is_described() -> None:
    names = {h.id: h.name for h in HOOKS}
    for d in DERIVED.values():
        hooks = "all" if d.everywhere else ", ".join(f"`{names[h]}`" for h in sorted(d.hooks))
        assert f"| `{d.name}` | {hooks} | {d.meaning} |" in TEXT
    for word in [*(f"`{n}`" for n in ROW), *(f"{a}(" for a in AGGREGATES), *(h.name for h in HOOKS), *UNITS]:
        assert word in TEXT
