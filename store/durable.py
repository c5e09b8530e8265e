"""Files that are whole or not there, and locks that end with their owner.

Everything of a trace that is not appended to (manifest, parts, tables) is written beside its place, made durable and
renamed. Everything that is read was written by someone else: only regular files are opened, never through a
symbolic link, and nothing that could block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of a file that is still being written; one that is found was left behind by a crash."""

_UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)


def open_regular(path: Path) -> int:
    """A descriptor for reading a regular file.

    Raises OSError: also for a symbolic link (ELOOP), a pipe or any other thing that is no file (EINVAL).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def read_regular(path: Path, limit: int) -> bytes:
    """All of a regular file.

    Raises OSError, with EFBIG when it has more than `limit` bytes.
    """
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes")
        return read_at(fd, 0, limit)
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset`; fewer only where the file ends. A shrinking file is short, never a signal."""
    pieces = []
    while length > 0:
        piece = os.pread(fd, min(length, 1 << 30), offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Append all of `data`.

    Raises OSError: then an unknown prefix of it has been written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on leaving, make it durable and rename it to `path`.

    When the body or any step before the rename raises, the temporary file is removed and `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield temporary
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)  # noqa: PTH105
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def lock_directory(path: Path, *, patience_s: float = 0.2) -> int | None:
    """Take a trace for oneself: a descriptor that holds the lock until it is closed or its process is gone.

    None where the file system knows no locks. Raises BlockingIOError when someone else holds it; a reader's
    probe holds it for microseconds, hence `patience_s`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise
            time.sleep(0.005)
        except OSError as error:
            os.close(fd)
            if error.errno in _UNLOCKABLE:
                return None
            raise


def is_locked(path: Path) -> bool | None:
    """Does a living process hold the trace? None where the file system knows no locks."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _UNLOCKABLE:
            return None
        raise
    else:
        return False
    finally:
        os.close(fd)


def process_start(pid: int) -> int:
    """Field 22 of /proc/PID/stat: when the process started, in clock ticks since boot; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command's name, in brackets, may hold blanks and brackets itself.
    return int(text.rpartition(")")[2].split()[19])
