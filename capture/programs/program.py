"""A program as it is verified and executed, wherever it came from: an object, a query, a segment's slot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ...store.tables import HOOKS
from .isa import Insn, encode
from .maps import Map

HOOK_IDS = frozenset(h.id for h in HOOKS)
PICK = 0
"""Entry.hooks of an `advise` program: the attach point `pick`, which is no hook."""
MAX_SLOTS = 4096
STACK_BYTES = 256
"""over all frames of a call chain"""
MAX_FRAMES = 8
CONTEXT_BYTES = 64


@dataclass(frozen=True)
class Entry:
    """Where execution begins for some hooks: r1 the context, r10 the frame. Each hook has at most one entry."""

    name: str
    hooks: tuple[int, ...]
    pc: int


@dataclass(frozen=True)
class SourceLine:
    """Source of the instructions from slot `pc` to the next line's. line and column count from 1; 0: not known."""

    pc: int
    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True)
class Function:
    """A function of the program: first slot, and name."""

    pc: int
    name: str


@dataclass(frozen=True)
class Cell:
    """An engine-wide value for the host to compute and feed.

    map: name of the feedback map, whose index is 0, or the value of the source's key where `keyed`. source: map that it
    is computed from, over all workers and the epochs closed in the last window_ns. quantile: of a histogram of at least
    1,000 values (with fewer nothing is fed), or None: the total of a count or sum, or how many values were counted.
    What is fed as `epoch` is one past the last epoch that is in it, so that 0 says: never fed.
    """

    map: str
    source: str
    quantile: float | None
    window_ns: int
    keyed: bool


@dataclass(frozen=True)
class Program:
    """Code, maps and entries. `insns` are slots, of which a function's end where the next one begins.

    kind: observe or advise. emit_limit: rows per worker and second of device time that `emit` may export, None: no
    limit of its own. sample: 1/n of the tasks is looked at (n), 1: all. feedback: what the host is to feed, where the
    names of the feedback maps do not say it (see capture.feedback).
    """

    name: str
    insns: tuple[Insn, ...]
    entries: tuple[Entry, ...]
    maps: tuple[Map, ...] = ()
    functions: tuple[Function, ...] = ()
    kind: str = "observe"
    lines: tuple[SourceLine, ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    emit_limit: int | None = None
    sample: int = 1
    feedback: tuple[Cell, ...] = field(default=(), compare=False)

    def entry(self, hook: int) -> Entry | None:
        """The entry for a hook, if the program is attached to it."""
        return next((e for e in self.entries if hook in e.hooks), None)

    @property
    def mask(self) -> int:
        """Bit h set: the program wants hook h."""
        return sum({1 << h for e in self.entries for h in e.hooks if h})

    def line(self, pc: int) -> SourceLine | None:
        """The source line that slot `pc` came from."""
        return max((x for x in self.lines if x.pc <= pc), key=lambda x: x.pc, default=None)

    @property
    def hash(self) -> str:
        """SHA-256 over code, entries and maps, in hex."""
        rest = repr((self.kind, self.entries, self.maps, self.functions, self.emit_limit, self.sample))
        return hashlib.sha256(encode(self.insns) + rest.encode()).hexdigest()
