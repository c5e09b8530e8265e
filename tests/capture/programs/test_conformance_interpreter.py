"""Every case of the bpf_conformance suite through the reference interpreter."""

from __future__ import annotations

import pytest
from conformance import EXCLUDED, MISSING, Case, cases

from megascope.capture.programs.assembler import AssemblyError
from megascope.capture.programs.interpreter import run_raw
from megascope.capture.programs.isa import encode

wanted = pytest.mark.skipif(not cases(), reason=MISSING)
RUN = [pytest.param(c, id=c.name) for c in cases() if c.name not in EXCLUDED]


@wanted
@pytest.mark.parametrize("instrumented", [False, True])
@pytest.mark.parametrize("case", RUN)
def test_result(case: Case, instrumented: bool) -> None:
    assert run_raw(case.insns, bytearray(case.memory), instrumented=instrumented) == case.result


@wanted
def test_all_cases_are_run_or_excluded_with_a_reason() -> None:
    assert len(cases()) == 313
    assert set(EXCLUDED) <= {c.name for c in cases()}
    assert len(RUN) == 313 - len(EXCLUDED)


@wanted
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in cases() if c.name in EXCLUDED])
def test_excluded_cases_are_refused(case: Case) -> None:
    with pytest.raises(AssemblyError, match="not part of the instruction set"):
        _ = case.insns


@wanted
def test_encodings_that_the_suite_gives() -> None:
    given = [c for c in cases() if c.raw]
    assert given
    for c in given:
        assert encode(c.insns) == b"".join(word.to_bytes(8, "little") for word in c.raw)
