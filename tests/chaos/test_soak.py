"""Twenty threads of one process at work for long, on a network that cuts what it carries.

One node at a time is ill, or starts anew; the other two are a quorum. So nobody may lose a lease or
be refused for want of a quorum, and what the process has grows with nothing.
"""

from __future__ import annotations

import gc
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from typing import NamedTuple

import psutil
import pytest

from celery_redlock.redlock import Lease, LeaseLost, LockHeld, QuorumUnavailable, Redlock
from celery_redlock.testing import Server, Servers
from tests.chaos.conftest import PATIENCE_S, SECONDS
from tests.conftest import StartServers
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.proxy import Proxy
from tests.support.judges.nodes import floor_on, holder_on, take_on

pytestmark = pytest.mark.chaos
THREADS = 20
KEYS = 16
TTL_S, NODE_TIMEOUT_S = 8.0, 3.0
"""A machine that stands still for a moment must not be taken for a second node that is ill."""
ILL_S = 5.0
LENGTHS = (8, 400)
"""Of keys: renewals of the long ones together are more than one packet carries."""
PIECE, PAUSE_S = 1448, 0.0003


class Book:
    """Who is inside of which block, by what each says: the judge.

    Args:
        nodes: The lock's nodes.

    Attributes:
        wrong: What must not happen, in words.
        counts: How often what happened.
        victim: Node that is ill, or waits for its guard.
    """

    def __init__(self, nodes: Servers) -> None:
        self.victim: Server | None = None
        self._nodes = nodes
        self._short: set[int] = set()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._mutex = threading.Lock()
        self._inside: dict[int, Lease] = {}
        self._highest: Counter[int] = Counter()

    def enter(self, key: int, lease: Lease) -> None:
        with self._mutex:
            other = self._inside.get(key)
            if other and other.remaining() > 0:
                self.wrong.append(f"key {key}: {lease.token} beside {other.token}")
            if lease.token <= self._highest[key]:
                self.wrong.append(f"key {key}: {lease.token} after {self._highest[key]}")
            self._inside[key] = lease
            self._highest[key] = max(lease.token, self._highest[key])
            self.counts["holds"] += 1

    def leave(self, key: int, lease: Lease) -> None:
        with self._mutex:
            if self._inside.get(key) is lease:
                del self._inside[key]

    def note(self, what: str) -> None:
        with self._mutex:
            self.counts[what] += 1

    def is_short(self, lease: Lease) -> bool:
        """Tell whether fewer than two well nodes have a lease, which may then be lost.

        A grant may reach two nodes only, and on the third the attempt of another have left a floor
        above it; its own grant may come there later, under a token above the lease's. If one of
        the two is ill then, the last one is no quorum.
        """
        well = [node for node in self._nodes if node is not self.victim]
        standing = [
            node
            for node in well
            if holder_on(node, lease.key) == lease.owner
            and floor_on(node, lease.key) <= lease.token
        ]
        is_short = len(standing) < 2
        with self._mutex:
            self.counts["short"] += is_short
            if is_short:
                self._short.add(lease.token)
        return is_short

    def blame(self, key: int, lease: Lease | None, error: Exception) -> None:
        """Note an error: with two nodes of three up there is hardly a reason for any."""
        if lease and lease.token in self._short:
            return
        text = re.sub("x{9,}", "…", str(error))
        token = lease.token if lease else "nothing"
        with self._mutex:
            self.wrong.append(f"key {key}: {type(error).__name__} with {token}: {text}")


class User(threading.Thread):
    """Thread that takes locks in the ways there are, and stays for a while.

    Args:
        number: Chooses what it does.
        redlock: Shared by all.
        holds: One for each key, shared by all.
        book: The judge.
    """

    def __init__(
        self,
        number: int,
        redlock: Redlock,
        holds: Sequence[AbstractContextManager[Lease]],
        book: Book,
    ) -> None:
        super().__init__(name=f"user-{number}", daemon=True)
        self.is_over = threading.Event()
        self._chance = random.Random(number)
        self._redlock = redlock
        self._holds = holds
        self._book = book

    def run(self) -> None:
        while not self.is_over.wait(self._chance.uniform(0.0, 0.05)):
            key, lease = self._chance.randrange(KEYS), None
            try:
                with self._lock(key) as lease:
                    self._book.enter(key, lease)
                    try:
                        self._work(lease)
                    finally:
                        self._book.leave(key, lease)
            except LockHeld:
                self._book.note("refusals")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is judged
                self._book.blame(key, lease, error)

    def _lock(self, key: int) -> AbstractContextManager[Lease]:
        if self._chance.random() < 0.7:
            return self._holds[key]
        wait = self._chance.choice([None, 0.2, 2.0])
        return self._redlock.acquire(name_of(key), TTL_S, wait=wait, renew=True)

    def _work(self, lease: Lease) -> None:
        # Now and then for longer than the ttl.
        until = time.monotonic() + self._chance.choice([0.0, 0.01, 0.1, 1.0, 2.5 * TTL_S])
        while time.monotonic() < until and not self.is_over.wait(self._chance.uniform(0.0, 0.2)):
            ask = self._chance.choice([lease.ensure, lease.extend])
            try:
                ask()
            except (LeaseLost, QuorumUnavailable):
                if self._book.is_short(lease):
                    return
                ask()  # a node that lacked it has been given it by the first question
            self._book.note("questions")


def name_of(key: int) -> str:
    """Return a key of another length: renewals of the long ones are more than a packet."""
    return f"{key}-".ljust(LENGTHS[key % len(LENGTHS)], "x")


# ---- one node is ill


def restarted(node: Server, proxy: Proxy) -> None:
    node.kill()
    node.start()


def frozen(node: Server, proxy: Proxy) -> None:
    node.pause()
    time.sleep(ILL_S)
    node.resume()


def unreachable(node: Server, proxy: Proxy) -> None:
    proxy.black_hole()
    time.sleep(ILL_S)
    mend(proxy)


def half_open(node: Server, proxy: Proxy) -> None:
    proxy.half_open()
    time.sleep(ILL_S)
    mend(proxy)


def cut_off(node: Server, proxy: Proxy) -> None:
    proxy.reset()


def down(node: Server, proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()
    time.sleep(ILL_S)
    mend(proxy)


def mend(proxy: Proxy) -> None:
    proxy.heal()
    proxy.cut(PIECE, PAUSE_S)
    # What was lost on its way is lost with its connection, as TCP has it.
    proxy.reset()


def replica_of(master: Server) -> Callable[[Server, Proxy], None]:
    def replica(node: Server, proxy: Proxy) -> None:
        with node.client() as client:
            client.replicaof("127.0.0.1", master.port)
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
            time.sleep(ILL_S)
            client.execute_command("REPLICAOF", "NO", "ONE")

    return replica


# ---- what grows


class Size(NamedTuple):
    """What this process, and the servers' accounts of it, have."""

    descriptors: int
    threads: int
    objects: int
    connections: int


def size_now(nodes: Servers) -> Size:
    gc.collect()
    process = psutil.Process()
    connections = 0
    for node in nodes:
        with node.client() as client:
            connections += client.info("clients")["connected_clients"] - 1
    return Size(process.num_fds(), process.num_threads(), len(gc.get_objects()), connections)


def grown(sizes: list[Size]) -> list[str]:
    """Return what was never as small again in the later half as it was in the earlier one."""
    half = len(sizes) // 2
    return [
        f"{name}: {[getattr(size, name) for size in sizes]}"
        for name in Size._fields
        if half and min(getattr(one, name) for one in sizes[half:])
        > max(getattr(one, name) for one in sizes[:half])
    ]  # fmt: skip


def test_what_grows_is_told_from_what_goes_up_and_down() -> None:
    sizes = [Size(10 + n, 5, 1000 + n % 3, 9) for n in range(8)]
    assert grown(sizes) == [f"descriptors: {list(range(10, 18))}"]


def test_a_node_that_has_granted_a_higher_token_is_none_of_two(servers: StartServers) -> None:
    """That it has the lock's owner, too, is of a grant which came there late."""
    nodes = servers(3)
    book = Book(nodes)
    with closing(Redlock(nodes.urls, max_ttl=TTL_S, restart_guard=False)) as redlock:
        lease = redlock.acquire("k", ttl=TTL_S)
        take_on(nodes[2:], "k", lease.owner, token=lease.token + 1)
    book.victim = nodes[2]
    assert not book.is_short(lease)
    book.victim = nodes[0]
    assert book.is_short(lease)


def test_nobody_is_wronged_while_one_node_at_a_time_is_ill(servers: StartServers) -> None:
    nodes, [spare] = servers(3), servers(1)
    faults = [restarted, frozen, unreachable, half_open, cut_off, down, replica_of(spare)]
    book, sizes, struck = Book(nodes), list[Size](), Counter[str]()
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        for proxy in proxies:
            proxy.cut(PIECE, PAUSE_S)
        redlock = Redlock(
            [proxy.url for proxy in proxies], max_ttl=TTL_S, node_timeout=NODE_TIMEOUT_S
        )
        stack.callback(redlock.close)
        holds = [redlock.lock(name_of(key), TTL_S, wait=1.0) for key in range(KEYS)]
        eventually(lambda: redlock.check() == {})
        users = [User(number, redlock, holds, book) for number in range(THREADS)]
        for user in users:
            user.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not book.wrong:
            fault = faults[sum(struck.values()) % len(faults)]
            victim = random.Random(sum(struck.values())).randrange(3)
            book.victim = nodes[victim]
            fault(nodes[victim], proxies[victim])
            struck[fault.__name__] += 1
            # A node that lost its locks waits for its guard; then renewals give it all of them.
            eventually(lambda: redlock.check() == {}, within=PATIENCE_S)
            time.sleep(TTL_S)
            book.victim = None
            sizes.append(size_now(nodes))
        for user in users:
            user.is_over.set()
        for user in users:
            user.join(PATIENCE_S)
        assert not any(user.is_alive() for user in users)
    assert book.wrong == []
    # Not before each fault has struck twice: all that there is has been used by then.
    assert len(sizes) < 2 * len(faults) or grown(sizes) == []
    assert book.counts["holds"] > SECONDS * THREADS / 20
    record(
        "soak",
        seconds=round(SECONDS), threads=THREADS, holds=book.counts["holds"],
        questions=book.counts["questions"],
        short=book.counts["short"], refusals=book.counts["refusals"],
        faults=sum(struck.values()), struck=dict(struck),
        first_size=sizes[0]._asdict(), last_size=sizes[-1]._asdict(),
        violations=0,  # asserted above
    )  # fmt: skip
