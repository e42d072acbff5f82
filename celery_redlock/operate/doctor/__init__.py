"""The doctor: a check for every known trap, each with a stable code."""

from __future__ import annotations

from .diagnosis import diagnose
from .traps import TRAPS, Finding, Severity, Trap

__all__ = ["TRAPS", "Finding", "Severity", "Trap", "diagnose"]
