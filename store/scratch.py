"""Folders for as long as a process needs them, and the removal of those whose process was killed.

A folder is named after its process (pid and start) and locked by it, and the lock ends with the process however that
ends. What is removed later bears such a name, belongs to this user alone, is of a process that is not there, and is
locked by nobody: a process of a container that shares the directory cannot be seen from here, but its lock can.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from . import durable
from .errors import MegascopeError

_NAME = re.compile(r"megascope-[a-z]+-(?P<pid>[0-9]{1,9})-(?P<start>[0-9]{1,19})-[a-z0-9_]+")
_swept = False


class Scratch:
    """A new folder in the temporary directory, until `remove` or the end of its with-statement.

    what: a word that says whose it is. Raises MegascopeError where there is no room for one.
    """

    def __init__(self, what: str) -> None:
        global _swept
        pid = os.getpid()
        try:
            if not _swept:
                _swept = True
                sweep()
            prefix = f"megascope-{what}-{pid}-{durable.process_start(pid)}-"
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
        except OSError as error:
            why = error.strerror or str(error)
            raise MegascopeError("cannot make a temporary folder", why, "let TMPDIR name a place for it") from None
        self._lock: int | None = None
        # Without a lock it would only never be taken for one that was left behind.
        with suppress(OSError):
            self._lock = durable.lock_directory(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and what is in it; again does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def sweep() -> list[Path]:
    """Remove this user's folders whose process was killed; returns what was removed."""
    removed = []
    with suppress(OSError):
        for path in sorted(Path(tempfile.gettempdir()).iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is not None and not _lives(int(match["pid"]), int(match["start"])) and _remove_unlocked(path):
                removed.append(path)
    return removed


def _lives(pid: int, start: int) -> bool:
    try:
        return durable.process_start(pid) == start
    except ValueError:
        return True


def _remove_unlocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)
    except OSError:
        return False
    finally:
        os.close(fd)
