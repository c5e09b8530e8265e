"""Every case of `verifier_cases/`: accepted or refused, with the whole reason, instruction and register."""

from __future__ import annotations

import pytest
from verifier_table import Case, cases, said

CASES = tuple(cases())


def test_the_table_is_large_and_says_each_thing_once() -> None:
    assert len(CASES) >= 150
    assert len({(c.theme, c.name) for c in CASES}) == len(CASES)
    accepted = sum(c.expected.startswith("accept") for c in CASES)
    assert min(accepted, len(CASES) - accepted) > len(CASES) // 3


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.theme}: {c.name}")
def test_case(case: Case) -> None:
    what, _ = said(case.program())
    assert what == case.expected or case.expected == "accept" == what.split()[0]
