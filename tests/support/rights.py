"""The user that docs/how-to/run-the-nodes.md has the lock run as."""

from __future__ import annotations

import redis

RIGHTS = (
    "~redlock:* resetchannels &redlock:* +evalsha +script|load +info +get +set +incr +decr +del "
    "+pexpire +pttl +time +select +subscribe +unsubscribe +publish +pubsub|numsub"
)
"""A test compares them with the page."""
RIGHTS_OF_COMMANDS = "+scan +mget +getrange +exists +dbsize +lpush +ltrim +lrange"
"""What the commands that show locks need as well, by the same page."""
PASSWORD = "sesame"  # noqa: S105  # of servers that live as long as a test


def give_rights(administrator: redis.Redis, name: str = "locker") -> dict[str, str]:
    """Make the user; return the arguments by which a client is that user."""
    administrator.execute_command("ACL", "SETUSER", name, "on", f">{PASSWORD}", *RIGHTS.split())
    return {"username": name, "password": PASSWORD}
