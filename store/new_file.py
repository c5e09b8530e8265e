"""A file that a user asked for: it appears when it is complete, and replaces nothing that it was not told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import MegascopeError, Refused


@contextmanager
def file_appears(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to be written, which appears at `path` when the block ends, and not at all when it raises.

    Raises Refused for a path that is taken (unless `force`) or no place for a file, MegascopeError for a full disk.
    """
    check_free(path, force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as out:
            yield out
        if force:
            temporary.replace(path)
        else:
            # A link, unlike a rename, does not replace what was put there meanwhile.
            os.link(temporary, path)
    except FileExistsError:
        raise Refused(f"cannot write {path}", "it exists", "give another name or --force") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise MegascopeError(f"cannot write {path}", why, "choose another place or free space") from None
    finally:
        temporary.unlink(missing_ok=True)


def check_free(path: Path, force: bool) -> None:
    """Raise Refused where `file_appears` could not write, before expensive work begins."""
    what = f"cannot write {path}"
    if path.is_dir():
        raise Refused(what, "it is a directory", "name a file in it")
    if not path.parent.is_dir():
        raise Refused(what, f"there is no directory {path.parent}", "create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Refused(what, f"the directory {path.parent} may not be written to", "choose another")
    if not force and os.path.lexists(path):
        raise Refused(what, "it exists", "give another name or --force")
