"""Guard for data in Redis or Valkey, which must not be one of the lock's nodes."""

from __future__ import annotations

from typing import Any

from .stale import StaleToken, valid_token

# Tokens are below 2^53, so that Lua's numbers hold them exactly.
_CLAIM = """
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""
_WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {0} end
return {1, redis.call(unpack(ARGV, 2))}
"""


def claim(client: Any, fence: str, token: int | None) -> None:
    """Claim what `fence` protects for this run: read only after that.

    Args:
        client: Client of redis-py.
        fence: Key that holds the highest token. It must not expire or be evicted.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has claimed it, or `token` is None.
    """
    if not client.eval(_CLAIM, 1, fence, valid_token(fence, token)):
        raise StaleToken(fence, token)


def write(client: Any, fence: str, token: int | None, *command: Any) -> Any:
    """Run one command if the claim is still the latest; return its reply.

    Args:
        client: Client of redis-py.
        fence: As in `claim`. In a cluster, in the hash slot of the command's keys.
        token: As in `claim`.
        *command: The command, as ``"SET", "balance:1", 1010``.

    Raises:
        StaleToken: A newer run has claimed it since: nothing was written.
    """
    done, *reply = client.eval(_WRITE, 1, fence, valid_token(fence, token), *command)
    if not done:
        raise StaleToken(fence, token)
    return reply[0] if reply else None
