"""`check` says whether a trace is whole; `repair` makes whole what can be."""

from __future__ import annotations

from .repair import repair
from .verify import Finding, Report, check

__all__ = ["Finding", "Report", "check", "repair"]
