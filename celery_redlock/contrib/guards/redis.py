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
        client: Client of redis-py, not an asynchronous one, and no pipeline.
        fence: Key that holds the highest token. It must not expire or be evicted.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has claimed it, or `token` is None.
        TypeError: The client does not wait for the server's reply.
    """
    if not _reply_of(client, _CLAIM, fence, token):
        raise StaleToken(fence, token)


def write(client: Any, fence: str, token: int | None, *command: Any) -> Any:
    """Run one command if the claim is still the latest; return its reply.

    Args:
        client: As in `claim`.
        fence: As in `claim`. In a cluster, in the hash slot of the command's keys.
        token: As in `claim`.
        *command: The command, as ``"SET", "balance:1", 1010``.

    Raises:
        StaleToken: A newer run has claimed it since: nothing was written.
        TypeError: The client does not wait for the server's reply.
    """
    done, *reply = _reply_of(client, _WRITE, fence, token, *command)
    if not done:
        raise StaleToken(fence, token)
    return reply[0] if reply else None


def _reply_of(client: Any, script: str, fence: str, token: int | None, *command: Any) -> Any:
    reply = client.eval(script, 1, fence, valid_token(fence, token), *command)
    if not isinstance(reply, (int, list)):
        # A pipeline, or a coroutine: what is taken for a claim would not be made.
        raise TypeError(f"{type(client).__name__} does not wait for the reply; give redis.Redis")
    return reply
