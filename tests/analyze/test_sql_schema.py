"""The reference is what the views are, and every example in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megascope.analyze.catalogue import views
from megascope.analyze.schema import schema_markdown, schema_table, schema_text, with_reference
from megascope.analyze.session import Session
from megascope.store.errors import Usage

DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"
EXAMPLES = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def test_document_is_current() -> None:
    """docs/sql.md holds today's reference."""
    text = DOCUMENT.read_text(encoding="utf-8")
    wanted = with_reference(text)
    assert text == wanted, "write what analyze.schema.with_reference makes of docs/sql.md back to it"


def test_document_without_markers_is_refused() -> None:
    """Nothing is replaced where nobody said what."""
    with pytest.raises(ValueError, match="no markers"):
        with_reference("# SQL\n")


@pytest.mark.parametrize("sql", EXAMPLES)
def test_examples_answer(sql: str, session: Session) -> None:
    """Every example of the documentation finds something in a recording."""
    assert session.run(sql).read_all().num_rows > 0


def test_there_are_examples() -> None:
    """The pattern above still finds them."""
    assert len(EXAMPLES) >= 10


def test_table_has_every_column_once() -> None:
    """view, column, type, unit, meaning."""
    table = schema_table()
    pairs = list(zip(table["view"].to_pylist(), table["column"].to_pylist(), strict=True))
    assert pairs == [(view.name, c.name) for view in views().values() for c in view.columns]
    assert len(set(pairs)) == len(pairs)
    assert schema_table(["task_classes"]).num_rows == 7


def test_text_and_markdown_name_every_column() -> None:
    """Both renderings are whole."""
    text, markdown = schema_text(), schema_markdown()
    for view in views().values():
        assert f"{view.name}: {view.meaning}\n" in text
        assert f"### {view.name}\n" in markdown
        for c in view.columns:
            assert re.search(rf"^  {c.name} +{re.escape(c.type)}", text, re.MULTILINE)
            assert f"| `{c.name}`{'*' if c.added else ''} | {c.type}" in markdown


def test_unknown_view_is_a_usage_error() -> None:
    """And names those that are."""
    with pytest.raises(Usage, match="cannot show evnts: there is no such view; the views are trace, events"):
        schema_text(["evnts"])
