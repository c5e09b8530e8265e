"""Whether a program that somebody asks an engine to run may run there: the same for every engine."""

from __future__ import annotations

import math

from ...store.errors import MegascopeError
from ...store.tables import HOOK_BY_NAME, HOOKS
from ..programs import image
from ..programs.execution import UNLIMITED, Limits
from ..programs.verdict import Rejected, Verdict
from ..segment.program_words import Code
from ..segment.requests import Request

MOST_PROGRAMS = 0xFFFF
"""A summary record has sixteen bits for a program's id."""
EPOCH = HOOK_BY_NAME["epoch"].id


class Unfit(Exception):
    """Why a request is refused, and in which words."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def admit(request: Request, *, exported: int, epoch_ns: int, program: int) -> tuple[Verdict, Limits]:
    """The program of a request, verified again, and its limits. exported: hooks that the engine fires; program: the
    id that it would have.

    Whatever the bytes hold, this returns or raises Unfit.
    """
    if program > MOST_PROGRAMS:
        raise Unfit(Code.SPENT, "every program id has been used; restart the engine")
    try:
        verdict = _verify(request, exported)
    except Rejected as no:
        raise Unfit(Code.REJECTED, f"{no.what}: {no.why}") from None
    except MegascopeError as no:
        raise Unfit(Code.IMAGE, no.why) from None
    except Unfit:
        raise
    except Exception as error:
        # Bytes from outside must not end the engine, whatever they did to those who read them.
        raise Unfit(Code.FAILED, f"it cannot be read: {type(error).__name__}: {error}") from None
    return verdict, _limits(verdict, request, epoch_ns)


def _verify(request: Request, exported: int) -> Verdict:
    # What verifies is loaded by those to whom a program comes.
    from ..programs.verifier import verify

    program = image.unpack(request.image)
    if program.kind != "observe" or not program.mask:
        raise Unfit(Code.KIND, f"it is of kind {program.kind} at no hook; this engine runs observers of hooks")
    unknown = [h.name for h in HOOKS if program.mask & ~(exported | 1 << EPOCH) & 1 << h.id]
    if unknown:
        raise Unfit(Code.HOOK, f"the engine does not export the hook {', '.join(unknown)}")
    return verify(program)


def _limits(verdict: Verdict, request: Request, epoch_ns: int) -> Limits:
    """What is asked for, and of rows no more than the program's own limit per second comes to in an epoch."""
    rows, own = request.rows or UNLIMITED, verdict.program.emit_limit
    if own is not None:
        rows = min(rows, math.ceil(own * epoch_ns / 1e9))
    return Limits(request.instructions or UNLIMITED, rows)
