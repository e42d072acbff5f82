"""Defaults that the lock and an app's settings share. Times are in seconds."""

from __future__ import annotations

TTL_S = 30.0
NODE_TIMEOUT_S = 0.05
MAX_TTL_S = 60.0
MAX_CLOCK_SKEW_S = 1.0
IDLE_TIMEOUT_S = 60.0
MAX_CONNECTIONS = 16
KEY_PREFIX = "redlock"
