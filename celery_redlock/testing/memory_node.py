"""One node without a server: the lock's commands, and the rules of its scripts, in Python.

The contract suite asks this node and real servers the same (tests/contract).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from celery_redlock.redlock.protocol.scripts import ALL, CONFIRM, EXTEND, GRANT, RELEASE, Argument
from celery_redlock.redlock.transport.connection import ErrorReply

_SHAS = {script.text: script.sha for script in ALL}


class MemoryNode:
    """Keys of one node, and its replies. For one thread at a time.

    Args:
        now: Returns the node's time, seconds; keys expire by it.
        epoch_us: Wall clock at time 0, µs since the epoch.

    Attributes:
        clock_ahead: By how much its wall clock is ahead, seconds.
        is_full: Whether it stores nothing more, as a full server under ``noeviction``.
    """

    def __init__(self, now: Callable[[], float] = time.time, epoch_us: int = 0) -> None:
        self._now = now
        self._epoch_us = epoch_us
        self._data: dict[str, tuple[object, float]] = {}
        self._has_written = False
        self.clock_ahead = 0.0
        self.is_full = False
        self._scripts = {
            GRANT.sha: self._grant,
            CONFIRM.sha: self._confirm,
            EXTEND.sha: self._extend,
            RELEASE.sha: self._release,
        }

    def execute(self, command: tuple[Argument, ...]) -> object:
        """Return the raw reply to a command, an error as a value."""
        name, *argv = [*_text(command[0]).split(), *map(_text, command[1:])]
        self._has_written = False
        try:
            if name == "EVALSHA":
                sha, count = argv[0], int(argv[1])
                return self._scripts[sha](argv[2 : 2 + count], argv[2 + count :])
            carry_out = getattr(self, f"_do_{name.lower()}", None)
            return carry_out(*argv) if carry_out else ErrorReply(f"ERR unknown command '{name}'")
        except ErrorReply as error:
            return error

    def listeners(self, channel: str) -> int:  # noqa: ARG002
        """Return how many clients hear of messages on `channel`."""
        return 0

    def publish(self, channel: str, payload: str) -> None:
        """Send a message to those who hear of `channel`."""

    def forget(self) -> None:
        """Lose every key, as a restart without persistence does."""
        self._data.clear()

    # ---- commands

    def _do_ping(self) -> bytes:
        return b"PONG"

    def _do_select(self, _database: str) -> bytes:
        return b"OK"

    def _do_script(self, action: str, *argv: str) -> bytes:
        if action == "LOAD" and argv[0] in _SHAS:
            return _SHAS[argv[0]].encode()
        raise ErrorReply("ERR this in-memory node runs the lock's own scripts only")

    def _do_flushall(self) -> bytes:
        self.forget()
        return b"OK"

    def _do_time(self) -> list[bytes]:
        seconds, micros = divmod(self._wall_us(), 1_000_000)
        return [str(seconds).encode(), str(micros).encode()]

    def _do_get(self, key: str) -> bytes | None:
        value = self._get(key)
        return None if value is None else value.encode()

    def _do_set(self, key: str, value: str, *options: str) -> bytes | None:
        if "NX" in options and self._look(key) is not None:
            return None
        ttl_ms = float(options[options.index("PX") + 1]) if "PX" in options else math.inf
        self._set(key, value, ttl_ms)
        return b"OK"

    def _do_pttl(self, key: str) -> int:
        return self._pttl(key)

    def _do_pexpire(self, key: str, ttl_ms: str) -> int:
        existed = self._look(key) is not None
        if existed:
            self._pexpire(key, float(ttl_ms))
        return int(existed)

    def _do_del(self, key: str) -> int:
        existed = self._look(key) is not None
        self._del(key)
        return int(existed)

    def _do_exists(self, key: str) -> int:
        return int(self._look(key) is not None)

    def _do_config(self, action: str, name: str, value: str = "") -> bytes:
        if (action, name) != ("SET", "maxmemory"):
            raise ErrorReply("ERR this in-memory node has one setting: maxmemory")
        self.is_full = value != "0"
        return b"OK"

    def _do_keys(self, _pattern: str) -> list[bytes]:
        return [key.encode() for key in list(self._data) if self._look(key) is not None]

    def _do_lpush(self, key: str, value: str) -> int:
        self._data[key] = ([value], math.inf)
        return 1

    # ---- scripts

    def _grant(self, keys: list[str], argv: list[str]) -> bytes | list[object]:
        owner, ttl_ms, proposed, skew_us, floor_ttl_ms, *rest = argv
        supersedes, highest_floor = rest[0] if rest else "", int(rest[1]) if rest[1:] else 0
        lock, floor_key, *done_keys = keys
        for done in done_keys:
            if self._look(done) is not None:
                return [2, self._pttl(done)]
        floor, holder = int(self._get(floor_key) or 0), self._get(lock)
        if holder == owner:
            return [1, floor, 0]
        is_too_late = 0 < highest_floor < floor
        is_free = holder is None or (supersedes != "" and holder == supersedes)
        now, skew = self._wall_us(), int(skew_us)
        if is_too_late or not is_free:
            left_ms = 0 if holder is None else self._pttl(lock)
            return [0, (holder or "").encode(), left_ms, floor, now]
        if floor >= 2**53:
            raise ErrorReply("ERR the floor is out of range")
        token = max(floor + 1, min(max(int(proposed), now - skew), now + skew))
        self._set(lock, owner, float(ttl_ms))
        self._set_floor(floor_key, token, float(ttl_ms) + float(floor_ttl_ms), token)
        return str(token).encode() if holder is None else [1, token, 1]

    def _confirm(self, keys: list[str], argv: list[str]) -> int:
        owner, token, ttl_ms, floor_ttl_ms, *_ = argv
        lock, floor_key = keys
        if self._get(lock) != owner or int(self._get(floor_key) or 0) > int(token):
            return 0
        self._set_floor(floor_key, int(token), float(ttl_ms) + float(floor_ttl_ms), int(token))
        return 1

    def _extend(self, keys: list[str], argv: list[str]) -> int:
        owner, token, ttl_ms, floor_ttl_ms, *_ = argv
        lock, floor_key = keys
        floor, holder = int(self._get(floor_key) or 0), self._get(lock)
        if floor > int(token):
            return 0
        if holder is not None and holder != owner:
            return 3
        floor_lasts = float(ttl_ms) + float(floor_ttl_ms)
        if holder is None:
            self._set(lock, owner, float(ttl_ms))
        else:
            self._pexpire(lock, float(ttl_ms))
        if holder is None or floor < int(token):
            self._set_floor(floor_key, int(token), floor_lasts, int(token))
        elif self._pttl(floor_key) < floor_lasts:
            self._pexpire(floor_key, floor_lasts)
        return 2 if holder is None else 1

    def _release(self, keys: list[str], argv: list[str]) -> int | list[object]:
        owner, token, floor_ttl_ms, *rest = argv
        keep_ms, done_ttl_ms, superseded = rest or ("0", "0", "")
        lock, floor_key, *done_keys = keys
        holder, held = self._get(lock), 0
        if superseded and holder == superseded:
            self._del(lock)
        elif holder == owner:
            held = 1
            if int(keep_ms) > 0:
                self._pexpire(lock, float(keep_ms))
            else:
                self._del(lock)
        floor = int(self._get(floor_key) or 0)
        if int(token) > 0 and floor <= int(token):
            if held and floor == int(token) and int(keep_ms) == 0:
                self._data[floor_key] = str(floor + 1), self._data[floor_key][1]
            else:
                lasts = float(keep_ms) + float(floor_ttl_ms)
                self._set_floor(floor_key, int(token) + 1, lasts, int(token))
        for done in done_keys:
            if self._pttl(done) < int(done_ttl_ms):
                self._set(done, "1", float(done_ttl_ms))
        if not held or int(token) == 0 or not (count := self.listeners(lock)):
            return held
        self.publish(lock, f"{token} {count}")
        return [b"released", count]

    # ---- what is stored

    def _wall_us(self) -> int:
        return self._epoch_us + round((self._now() + self.clock_ahead) * 1e6)

    def _look(self, key: str) -> object:
        stored = self._data.get(key)
        if stored is None:
            return None
        if stored[1] <= self._now():
            del self._data[key]
            return None
        return stored[0]

    def _get(self, key: str) -> str | None:
        value = self._look(key)
        if value is None or isinstance(value, str):
            return value
        raise ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")

    def _set(self, key: str, value: str, ttl_ms: float) -> None:
        # A script that has written may go on writing.
        if self.is_full and not self._has_written:
            raise ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
        self._has_written = True
        self._data[key] = (value, self._now() + ttl_ms / 1000)

    def _set_floor(self, key: str, floor: int, ttl_ms: float, token: int) -> None:
        # It lasts until the clock is past the token, but not longer by more than a day.
        ahead_ms = math.ceil((token - self._wall_us()) / 1000)
        self._set(key, str(floor), ttl_ms + min(max(0, ahead_ms), 86_400_000))

    def _pexpire(self, key: str, ttl_ms: float) -> None:
        self._has_written = True
        if self._look(key) is not None:
            self._data[key] = (self._data[key][0], self._now() + ttl_ms / 1000)

    def _del(self, key: str) -> None:
        self._has_written = True
        self._data.pop(key, None)

    def _pttl(self, key: str) -> int:
        if self._look(key) is None:
            return -2
        ends = self._data[key][1]
        return -1 if ends == math.inf else math.ceil((ends - self._now()) * 1000)


def _text(argument: Argument) -> str:
    return argument.decode() if isinstance(argument, bytes) else str(argument)
