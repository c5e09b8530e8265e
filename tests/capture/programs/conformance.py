"""The cases of the bpf_conformance suite: assembly, memory in, result in r0. They stand beside the repository.

Where they are missing, `cases()` is empty and the tests that want them skip with `MISSING` as the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from megascope.capture.programs.assembler import assemble
from megascope.capture.programs.isa import Insn

FOLDER = Path(__file__).resolve().parents[4] / "shared/conformance/bpf_conformance/tests"
MISSING = "the bpf_conformance cases are not at ../shared/conformance"

EXCLUDED = {
    "callx": "a call through a register: no part of the instruction set (RFC 9669), and refused when assembled",
}
"""Cases that need what the design rules out, and the reason."""


@dataclass(frozen=True)
class Case:
    """r1 points to `memory` (0 if it is empty), r2 is its length; `result` is what r0 must be at the end."""

    name: str
    text: str
    memory: bytes
    result: int
    raw: tuple[int, ...]
    """the slots as 64-bit words, where the suite gives them"""

    @property
    def insns(self) -> tuple[Insn, ...]:
        """Raises AssemblyError for the cases in EXCLUDED."""
        return assemble(self.text)


def _read(path: Path) -> Case:
    parts: dict[str, list[str]] = {}
    part: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("-- "):
            part = parts.setdefault(line[3:].strip(), [])
        elif line.strip() and not (line.startswith("#") and not parts):
            part.append(line)
    (result,) = parts["result"]
    memory = bytes.fromhex("".join(parts.get("mem", [])))
    raw = tuple(int(word, 16) for word in parts.get("raw", []))
    return Case(path.stem, "\n".join(parts["asm"]), memory, int(result, 16) % (1 << 64), raw)


@lru_cache
def cases() -> tuple[Case, ...]:
    """Every case, the excluded ones too, by name."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*.data")))
