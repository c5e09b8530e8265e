"""What lowering is given: the code with what the verifier said of it, and the target that it is lowered for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...store.tables import Column
from .isa import Insn
from .llvm_text import Text
from .maps import Map
from .verdict import Access, Verdict


class Target(Protocol):
    """What the lowered code runs in."""

    parameters: str
    """LLVM parameters that every function takes after its five arguments and hands on under the same names"""
    helper_parameters: str
    """those of them that a helper takes before its own"""

    def column(self, text: Text, column: Column) -> str:
        """A column of the row, in its own width."""

    def global_value(self, text: Text, map_index: int) -> str:
        """A pointer to the only value of a global's map."""

    def emit(self, text: Text) -> None:
        """The program asks for its row to be exported."""


@dataclass(frozen=True)
class Code:
    """What is lowered; access, reachable and frames are None for code that nobody verified (see Verdict)."""

    what: str
    insns: tuple[Insn, ...]
    maps: tuple[Map, ...] = ()
    access: Mapping[int, Access] | None = None
    call_maps: Mapping[int, int] | None = None
    reachable: frozenset[int] | None = None
    frames: Mapping[int, int] | None = None

    @staticmethod
    def of(verdict: Verdict) -> Code:
        p = verdict.program
        return Code(
            f"program {p.name}", p.insns, p.maps, verdict.access, verdict.call_maps, verdict.reachable, verdict.frames
        )
