"""What happens to each rung: the same accident for a foil and for this package's lock.

An accident tells what it sees, a line at a time, and returns whether the lock held.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from celery_redlock.redlock.clock import Clock, SystemClock
from celery_redlock.testing import Server, Servers, start_servers
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import FakeClock, LeapingClock
from tests.support.faults.proxy import Proxy
from tests.support.root import ROOT

from .foils import Client, Held, NewClient
from .ours import Ours

_SOON_S = 0.4
_SEEN_S = 5.0
"""Longer than a busy machine takes to see a key."""
_LONG_S = 60.0


class Shifted(SystemClock):
    """A machine's clock of which the date is wrong."""

    def __init__(self, seconds: float) -> None:
        self._ahead_us = round(seconds * 1e6)

    def wall_us(self) -> int:
        """Return the wrong date, in µs since the epoch."""
        return super().wall_us() + self._ahead_us


class SameSecond(SystemClock):
    """A machine's clock of which the date stands still: all that happens is in one second."""

    def __init__(self) -> None:
        self._date_us = super().wall_us()

    def wall_us(self) -> int:
        """Return the date, in µs since the epoch."""
        return self._date_us


@dataclass
class Stage:
    """One run of one accident.

    Attributes:
        new_client: Makes a client of the lock that is tried.
        lines: What was seen.
        held: Whether the lock held.
    """

    new_client: NewClient
    stack: ExitStack
    lines: list[str] = field(default_factory=list)
    held: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the lock that is tried is this package's."""
        return self.new_client is Ours

    def servers(self, count: int, *args: str) -> Servers:
        """Start servers for this run."""
        return self.stack.enter_context(start_servers(count, *args))

    def proxy(self, server: Server) -> Proxy:
        """Put a proxy in front of a server."""
        return self.stack.enter_context(Proxy(server.port))

    def client(self, urls: Sequence[str], clock: Clock | None = None) -> Client:
        """Return a new client, closed in the end."""
        client = self.new_client(urls, clock or SystemClock())
        self.stack.callback(client.close)
        return client

    def tell(self, who: str, what: str) -> None:
        """Note what is seen of a client."""
        self.lines.append(f"{who}  {what}")

    def tries(self, who: str, client: Client, ttl: float = _LONG_S) -> Held | None:
        """Have a client try once, and tell."""
        held = client.acquire(ttl)
        self.tell(who, "acquires the lock" if held else "is refused")
        return held

    def acquires(self, who: str, client: Client, ttl: float = _LONG_S) -> Held:
        """Have a client acquire a lock that is free, and tell; if it is too slow, once more."""
        held: Held | None = None

        def has_acquired() -> bool:
            nonlocal held
            held = client.acquire(ttl)
            return held is not None

        eventually(has_acquired, f"{who} acquires the lock")
        assert held
        self.tell(who, "acquires the lock")
        return held

    def ends(self, held: bool, what: str) -> None:
        """Note the outcome."""
        self.held = held
        self.lines.append(f"=> {what}")


def _ttls_ms(server: Server) -> list[int]:
    """Return the remaining time of each lock key on a server; -1: it never expires."""
    with server.client() as client:
        # A floor, which is ours, is no lock.
        locks = [key for key in client.scan_iter() if not key.endswith(b":floor")]
        return [ttl for ttl in map(client.pttl, locks) if ttl != -2]


def killed_in_between(stage: Stage) -> None:
    """Kill a client as soon as its key is on the server."""
    [server] = stage.servers(1)
    name = "ours" if stage.is_ours else "foil"
    command = [sys.executable, "-m", f"{__package__}.victim", name, f"{_SEEN_S}", server.url]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            eventually(lambda: _ttls_ms(server), "its key is set")
        finally:
            process.kill()
    stage.tell("A", "sets the key, and is killed")
    lasts = _ttls_ms(server)
    stage.tell(" ", "the key " + ("never expires" if -1 in lasts else "expires"))
    b = stage.client([server.url])
    clock = SystemClock()
    ends_at = clock.now() + (5 * _SOON_S if -1 in lasts else _LONG_S)
    while not (held := b.acquire(_SOON_S)) and clock.now() < ends_at:
        clock.sleep(0.05)
    stage.tell("B", "acquires the lock once it has expired" if held else "is refused for five ttls")
    stage.ends(bool(held), "locked by a dead client " + ("for its ttl" if held else "for ever"))


def contended_while_dead(stage: Stage) -> None:
    """Have a contender ask again and again for the lock of a client that is dead."""
    [server] = stage.servers(1)
    # A foil's time is its clients' alone; ours is the server's.
    clock = SystemClock() if stage.is_ours else FakeClock(1_000_000.0)
    a, b = stage.client([server.url], clock), stage.client([server.url], clock)
    stage.acquires("A", a, _SOON_S)
    stage.tell("A", "dies")
    ends_at = clock.now() + (_LONG_S if stage.is_ours else 100 * _SOON_S)
    while not (held := b.acquire(_SOON_S)) and clock.now() < ends_at:
        clock.sleep(_SOON_S / 8)
    stage.tell("B", "asks 8 times per ttl: " + ("has it after one" if held else "never has it"))
    stage.ends(
        bool(held),
        "a refused client leaves the holder's lock alone"
        if held
        else "each refused client postpones the end of the dead client's lock",
    )


def date_ahead(stage: Stage) -> None:
    """Have a client compete whose date is five minutes ahead."""
    [server] = stage.servers(1)
    a, b = stage.client([server.url]), stage.client([server.url], Shifted(300))
    stage.acquires("A", a)
    stage.tell("B", "has a wall clock that is 5 minutes ahead")
    held = stage.tries("B", b)
    stage.ends(not held, "two holders" if held else "one holder")


def released_late(stage: Stage, clock: Clock | None = None) -> None:
    """Have a client release a lock that has expired meanwhile, and is another one's."""
    [server] = stage.servers(1)
    a, b, c = (stage.client([server.url], clock) for _ in range(3))
    mine = stage.acquires("A", a, _SOON_S)
    stage.tell("A", "stands still until the lock has expired")
    eventually(lambda: not _ttls_ms(server), "it has expired")
    stage.acquires("B", b)
    stage.tell("A", "goes on, and releases what it takes for its lock")
    a.release(mine)
    held = stage.tries("C", c)
    stage.ends(not held, "B and C hold the lock" if held else "B alone holds the lock")


def released_late_in_one_second(stage: Stage) -> None:
    """The same; all three acquire within one second of the wall clock."""
    released_late(stage, SameSecond())


def failed_over(stage: Stage) -> None:
    """Kill a master before its replica has the lock, and promote the replica."""
    nodes = stage.servers(3 if stage.is_ours else 1, "--repl-diskless-sync-delay", "0")
    master, others = nodes[0], list(nodes[1:])
    [replica] = stage.servers(1)
    link, address = stage.proxy(master), stage.proxy(master)
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(link.port))
        eventually(lambda: client.info("replication")["master_link_status"] == "up", "it follows")
    urls = [address.url, *(node.url for node in others)]
    a, b = stage.client(urls, LeapingClock()), stage.client(urls, LeapingClock())
    a.know_nodes()
    b.know_nodes()
    link.black_hole()
    stage.tell(" ", "the replica of " + ("one node of three" if others else "the master") + " lags")
    stage.acquires("A", a)
    master.kill()
    with replica.client() as client:
        client.execute_command("REPLICAOF", "NO", "ONE")
    address.forward_to(replica.port)
    address.reset()
    stage.tell(" ", "the master dies; its replica is promoted under the same address")
    b.know_nodes()
    held = stage.tries("B", b)
    stage.ends(not held, "two holders" if held else "one holder")


def written_late(stage: Stage) -> None:
    """Pause a holder between its read and its write, until another one has written."""
    nodes = stage.servers(3)
    a, b = stage.client(nodes.urls), stage.client(nodes.urls)
    account = _Account()
    mine = stage.acquires("A", a, _SOON_S)
    seen = account.read(mine.token)
    stage.tell("A", f"reads {seen}, and stands still until the lock has expired")
    eventually(lambda: not any(map(_ttls_ms, nodes)), "it has expired")
    theirs = stage.acquires("B", b)
    also_seen = account.read(theirs.token)
    account.write(also_seen + 50, theirs.token)
    stage.tell("B", f"reads {also_seen}, adds 50, writes {also_seen + 50}")
    is_written = account.write(seen + 30, mine.token)
    stage.tell("A", f"goes on: adds 30, writes {seen + 30}" + ("" if is_written else ": refused"))
    stage.tell(" ", f"the account has {account.balance}")
    stage.ends(not is_written, "B's 50 are lost" if is_written else "A's token is too low")


class _Account:
    """A row with a fence: see "Protect a resource". A lock without a token can't use it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE TABLE account (balance INTEGER, fence INTEGER)")
        self._database.execute("INSERT INTO account VALUES (100, 0)")

    @property
    def balance(self) -> int:
        return int(self._database.execute("SELECT balance FROM account").fetchone()[0])

    def read(self, token: int | None) -> int:
        """Claim the token, if there is one; then read."""
        if token is not None:
            claim = "UPDATE account SET fence = ? WHERE fence < ?"
            assert self._database.execute(claim, (token, token)).rowcount == 1
        return self.balance

    def write(self, balance: int, token: int | None) -> bool:
        """Write, unless a higher token has been claimed since; return whether it was written."""
        if token is None:
            write = self._database.execute("UPDATE account SET balance = ?", (balance,))
        else:
            write = self._database.execute(
                "UPDATE account SET balance = ? WHERE fence = ?", (balance, token)
            )
        return write.rowcount == 1


def restarted_empty(stage: Stage) -> None:
    """Restart a node that has granted the lock; it remembers nothing."""
    nodes = stage.servers(3)
    far = stage.proxy(nodes[2])
    a = stage.client([*nodes.urls[:2], far.url], LeapingClock())
    b = stage.client(nodes.urls, LeapingClock())
    a.know_nodes()
    b.know_nodes()
    far.refuse()
    far.reset()
    stage.acquires("A", a)
    stage.tell(" ", "on nodes 1 and 2: from A's host node 3 can't be reached")
    nodes[1].restart()
    stage.tell(" ", "node 2 restarts, without its memory")
    b.know_nodes()
    held = stage.tries("B", b)
    stage.ends(not held, "two holders" if held else "one holder: node 2 does not vote yet")
