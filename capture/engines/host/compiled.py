"""Compilation by numba, kept in the user's cache directory.

Compiled functions take the address of one block of int64 words (`state.Sim`) as a plain pointer: passing arrays
between functions, with their shapes and reference counts, made the same code five times slower and its compilation
ten times.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])
_numba: Any = numba
_types: Any = types
_OPTIONS = {"nogil": True, "error_model": "numpy"}


def _cache() -> str | None:
    """Where compiled code is kept: one directory for each state of the sources. None where nothing can be kept.

    Numba looks at the one file in which an entry stands; constants come from others.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "graph.py"]
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in sources))
    cache = Path(home) / "megascope" / "numba" / digest.hexdigest()[:16]
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(cache) if os.access(cache, os.W_OK) else None


def compiled(function: _F) -> _F:
    """A function that compiled code calls: compiled once, whichever of its arguments are constants."""
    out: Any = _numba.njit(**_OPTIONS)(function)
    template = out.get_call_template
    # Numba would compile it anew for every constant that a caller writes as an argument.
    out.get_call_template = lambda args, kws: template([_types.unliteral(a) for a in args], kws)
    return cast(_F, out)


def entry(function: _F) -> _F:
    """A function that Python calls: compiled at its first call on this machine, then loaded."""
    before = _numba.config.CACHE_DIR
    cache = os.environ.get("NUMBA_CACHE_DIR") or _cache()
    if cache is None:
        return cast(_F, _numba.njit(**_OPTIONS)(function))
    _numba.config.CACHE_DIR = cache
    try:
        return cast(_F, _numba.njit(cache=True, **_OPTIONS)(function))
    finally:
        _numba.config.CACHE_DIR = before


def _words(_context: Any, _address: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.intp_t.as_pointer())

    return _types.CPointer(_types.int64)(_types.intp), generate


words: Any = intrinsic(_words)
"""In compiled code: the int64 words at an address, to be indexed."""
