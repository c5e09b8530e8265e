"""An engine outlives its segment's file: memory whose file somebody cuts short becomes this process's own.

Whoever may write to a segment's file may also truncate it, and what the engine then touches beyond its end is a SIGBUS,
of which a process ends. An accident of an observer must not end what is observed. The handler here, machine code that
needs no interpreter, puts private zeroed memory in the mapping's place, all of it and once; the engine goes on, seen by
nobody, and learns of it from `cut`. (File seals would forbid the truncation, but only to a file without a name, and of
that nothing is left for a recorder when its engine dies.)
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading
import weakref
from functools import cache

from ...store.errors import MegascopeError
from ..programs.native_compile import Compiled

MOST = 256
"""Mappings of one process that are guarded at once."""
_SI_ADDR = 16
"""Where siginfo_t has the address of a fault."""
_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000
_PROT, _FLAGS = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED


class _Range(ctypes.Structure):
    """begin, length: of the mapping, in bytes; length 0: a free entry. cut: not 0 once it has been replaced."""

    _fields_ = (("begin", ctypes.c_uint64), ("length", ctypes.c_uint64), ("cut", ctypes.c_uint64))


class _SigAction(ctypes.Structure):
    """`struct sigaction` of sigaction(2), as the C libraries of 64-bit Linux have it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _handler(ranges: int, before: int) -> str:
    """LLVM assembly of the handler. ranges: address of MOST of `_Range`. before: of the action that was in force.

    The thread that marks a mapping as cut replaces it; others that fault in it meanwhile return and try again. A fault
    elsewhere is left to the action before, which then meets the same fault.
    """
    return f"""
%range = type {{ i64, i64, i64 }}
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)

define void @on_fault(i32 %signal, ptr %about, ptr %context) {{
entry:
  %place = getelementptr i8, ptr %about, i64 {_SI_ADDR}
  %at = load i64, ptr %place
  %ranges = inttoptr i64 {ranges} to ptr
  br label %look

look:
  %i = phi i64 [ 0, %entry ], [ %next, %elsewhere ]
  %its_length = getelementptr %range, ptr %ranges, i64 %i, i32 1
  %length = load atomic i64, ptr %its_length acquire, align 8
  %its_begin = getelementptr %range, ptr %ranges, i64 %i, i32 0
  %begin = load atomic i64, ptr %its_begin monotonic, align 8
  %offset = sub i64 %at, %begin
  %inside = icmp ult i64 %offset, %length
  br i1 %inside, label %ours, label %elsewhere

ours:
  %its_cut = getelementptr %range, ptr %ranges, i64 %i, i32 2
  %seen = cmpxchg ptr %its_cut, i64 0, i64 1 seq_cst seq_cst
  %first = extractvalue {{ i64, i1 }} %seen, 1
  br i1 %first, label %replace, label %done

replace:
  %where = inttoptr i64 %begin to ptr
  %got = call ptr @mmap(ptr %where, i64 %length, i32 {_PROT}, i32 {_FLAGS}, i32 -1, i64 0)
  %replaced = icmp eq ptr %got, %where
  br i1 %replaced, label %done, label %give_up

elsewhere:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {MOST}
  br i1 %more, label %look, label %give_up

give_up:
  %action = inttoptr i64 {before} to ptr
  %ignored = call i32 @sigaction(i32 {int(signal.SIGBUS)}, ptr %action, ptr null)
  ret void

done:
  ret void
}}
"""


class _Guards:
    """The handler and what it guards. There is one in a process, and it is never dropped."""

    def __init__(self) -> None:
        self.ranges, self._before, self._lock = (_Range * MOST)(), _SigAction(), threading.Lock()
        assembly = _handler(ctypes.addressof(self.ranges), ctypes.addressof(self._before))
        self._code = Compiled("cannot guard a segment", assembly, thorough=False)
        action = _SigAction(handler=self._code.address("on_fault"), flags=_SA_SIGINFO | _SA_ONSTACK)
        libc = ctypes.CDLL(None, use_errno=True)
        number = int(signal.SIGBUS)
        # What was in force must be known before a handler that may hand over to it is.
        for new, old in ((None, self._before), (action, None)):
            if libc.sigaction(number, new and ctypes.byref(new), old and ctypes.byref(old)):
                raise OSError(ctypes.get_errno(), "sigaction")

    def take(self, begin: int, length: int) -> int:
        with self._lock:
            for i, one in enumerate(self.ranges):
                if not one.length:
                    one.begin, one.cut = begin, 0
                    one.length = length
                    return i
        raise MegascopeError("cannot guard a segment", f"this process has {MOST} already", "close some")

    def free(self, index: int) -> None:
        self.ranges[index].length = 0


_guards = cache(_Guards)


class Guard:
    """Guards a shared mapping of a file for as long as the mapping lives. Raises MegascopeError beyond MOST."""

    def __init__(self, memory: mmap.mmap) -> None:
        guards, self._length = _guards(), len(memory)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._range = guards.ranges[(index := guards.take(begin, self._length))]
        self._memory = weakref.ref(memory)
        weakref.finalize(memory, guards.free, index)

    @property
    def cut(self) -> bool:
        """Whether the file has become shorter than the mapping, so that nobody can follow what is written there."""
        memory = self._memory()
        return bool(self._range.cut) or (memory is not None and memory.size() < self._length)
