"""What servers have refused to their users, and run for them, seen by their administrator."""

from __future__ import annotations

from collections.abc import Iterable

from celery_redlock.testing import Server


def start_counting(servers: Iterable[Server]) -> None:
    """Forget what was refused and run so far."""
    for server in servers:
        with server.client() as client:
            client.acl_log_reset()
            client.config_resetstat()


def refusals(servers: Iterable[Server]) -> list[str]:
    """Return what users were refused, for want of a right."""
    found: list[str] = []
    for server in servers:
        with server.client() as client:
            found += [f"{one['username']}: {one['object']}" for one in client.acl_log()]
    return found


def scripts_run(servers: Iterable[Server]) -> int:
    """Return how many scripts were run: only the lock runs any."""
    count = 0
    for server in servers:
        with server.client() as client:
            stats = client.info("commandstats")
            count += int(stats.get("cmdstat_evalsha", {}).get("calls", 0))
    return count


def addresses_of_the_lock(servers: Iterable[Server]) -> set[tuple[str, str]]:
    """Return the user, and the server's address, of each connection that has run a script."""
    found = set()
    for server in servers:
        with server.client() as client:
            for one in client.client_list():
                if one["cmd"].startswith("evalsha"):
                    found.add((one["user"], one["laddr"]))
    return found


def is_listened_to(servers: Iterable[Server], key: str) -> bool:
    """Return whether somebody waits for a release of this key on each server."""
    for server in servers:
        with server.client(decode_responses=True) as client:
            if not any(key in channel for channel in client.pubsub_channels()):
                return False
    return True
