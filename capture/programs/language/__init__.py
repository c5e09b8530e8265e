"""The query language: one line, or a few, compiled to the same eBPF as programs in C. See docs/query.md."""

from .compilation import compile, constants_of
from .errors import QueryRefused
from .query import Query

__all__ = ["Query", "QueryRefused", "compile", "constants_of"]
