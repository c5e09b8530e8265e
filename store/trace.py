"""A trace on disk: `TraceWriter` records one, `Trace` opens one, whether it is sealed, unsealed or being recorded."""

from __future__ import annotations

from .reader import Part, Trace
from .writer import TraceWriter

__all__ = ["Part", "Trace", "TraceWriter"]
