"""The table of verifier cases: `verifier_cases/*.txt`, read. Each file has a theme; a case is

    == its name
    assembler, as `assembler` reads it, and the shorthands below
    -> accept                        or: accept simt, accept serial 7: why
    -> reject 4 r2: the whole reason

`key M` writes 1 as a key of map M and points r1 and r2 to both; `touch R` stores to the stack at R, so that a number
from 0 to 63 is inside and any other is not; `end` returns 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.histogram import VALUE_BYTES
from megascope.capture.programs.maps import FEEDBACK_BYTES, STATS_BYTES, Map, MapKind
from megascope.capture.programs.program import Entry, Program
from megascope.capture.programs.verdict import Rejected, Verdict
from megascope.capture.programs.verifier import verify

MAPS = (
    Map("counts", MapKind.HASH, 4, 8, 64, aggregate=True),
    Map("lows", MapKind.HASH, 4, 8, 64, aggregate=True),
    Map("table", MapKind.HASH, 8, 24, 64),
    Map("array", MapKind.ARRAY, 4, 16, 8),
    Map("totals", MapKind.ARRAY, 4, 8, 8, aggregate=True),
    Map("lat", MapKind.HIST, 4, VALUE_BYTES, 64, aggregate=True),
    Map("stats", MapKind.STATS, 4, STATS_BYTES, 64, aggregate=True),
    Map("cells", MapKind.FEEDBACK, 4, FEEDBACK_BYTES, 4),
    Map("bss", MapKind.ARRAY, 4, 64, 1),
    Map("rodata", MapKind.ARRAY, 4, 16, 1, initial=bytes(range(16)), read_only=True),
    Map("allowed", MapKind.HASH, 4, 8, 64, read_only=True),
    Map("shared", MapKind.HASH, 4, 8, 64, shared=True, aggregate=True),
    Map("shared_array", MapKind.ARRAY, 4, 8, 64, shared=True),
)
NAMES = {m.name: i for i, m in enumerate(MAPS)}
_SHORT = {
    "key": "stdw [%r10-8], 1\nmov %r2, %r10\nadd %r2, -8\nlddw %r1, map:{}",
    "touch": "mov %r4, %r10\nadd %r4, -64\nadd %r4, {}\nstb [%r4+0], 1\nstb [%r4-192], 1",
    "end": "mov %r0, 0\nexit",
}
_LINE = re.compile(r"(?P<label>\w+:\s*)?(?P<short>key|touch|end)\b\s*(?P<what>\S*)$")


@dataclass(frozen=True)
class Case:
    """One program, and what is to be said of it."""

    theme: str
    name: str
    text: str
    expected: str

    def program(self) -> Program:
        return program(self.text)


def program(text: str, hook: int = 4) -> Program:
    """Assembler with shorthands, as a program for one hook with all of MAPS."""
    lines = []
    for line in text.splitlines():
        m = _LINE.match(line)
        lines.append(line if m is None else (m["label"] or "") + _SHORT[m["short"]].format(m["what"]))
    return Program("case", assemble("\n".join(lines), NAMES), (Entry("main", (hook,), 0),), MAPS)


def said(p: Program) -> tuple[str, Verdict | None]:
    """What the verifier says, in the words of the table."""
    try:
        verdict = verify(p)
    except Rejected as e:
        register = "" if e.register is None else f" r{e.register}"
        return f"reject {e.pc}{register}: {e.reason}", None
    return ("accept simt" if verdict.simt else f"accept serial {verdict.serial_pc}: {verdict.serial_because}"), verdict


def cases() -> Iterator[Case]:
    """All of them."""
    for path in sorted((Path(__file__).parent / "verifier_cases").glob("*.txt")):
        for part in path.read_text().split("\n== ")[1:]:
            name, _, rest = part.partition("\n")
            text, _, expected = rest.partition("\n-> ")
            yield Case(path.stem, name, text, expected.strip())
