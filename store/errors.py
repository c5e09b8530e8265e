"""The one exception type whose text is meant for a user's eyes.

A `MegascopeError` says, on one line, what failed, why, and what to do; it carries the process's exit code.
Everything that a user, a file or another process can get wrong raises it. Anything else that escapes is a
defect of ours and shows its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb, printed by `megascope --help`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    INCOMPLETE = 4
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_MEANING = {
    Exit.DONE: "done",
    Exit.FAILED: "failed",
    Exit.USAGE: "usage",
    Exit.REFUSED: "refused: bad input",
    Exit.INCOMPLETE: "done, but incomplete: loss above what was asked",
    Exit.HUNG_UP: "terminal closed (SIGHUP)",
    Exit.INTERRUPTED: "interrupted",
    Exit.TERMINATED: "terminated (SIGTERM)",
}


class MegascopeError(Exception):
    """What failed, why, and what to do.

    what: "cannot open trace.mscope"; why: "manifest.json is not JSON (line 3)"; todo: "run megascope check on it".
    excerpt: lines of a text that is refused, to be shown above; mostly none.
    """

    excerpt: str = ""

    def __init__(self, what: str, why: str, todo: str = "", *, code: Exit = Exit.FAILED) -> None:
        self.what, self.why, self.todo, self.code = what, why, todo, code
        text = f"{what}: {why}"
        if todo:
            text += f"; {todo}"
        super().__init__(" ".join(text.split()))


class Refused(MegascopeError):
    """Input that is damaged, hostile, unknown or of another version: exit code 3."""

    def __init__(self, what: str, why: str, todo: str = "") -> None:
        super().__init__(what, why, todo, code=Exit.REFUSED)


class Usage(MegascopeError):
    """A command line that does not say what to do: exit code 2."""

    def __init__(self, what: str, why: str, todo: str = "") -> None:
        super().__init__(what, why, todo, code=Exit.USAGE)
