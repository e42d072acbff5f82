"""The same faults on this lock and on others: the judge has to see what goes wrong there.

What each of the others never promised is told in docs/explanation/evidence.md.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.testing import Server, Servers, start_servers
from tests.chaos.conftest import SECONDS
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.nemesis import Heal, Nemesis, Strikes, alone
from tests.support.faults.of_network import network_nemeses
from tests.support.faults.of_processes import process_nemeses
from tests.support.faults.proxy import Proxy
from tests.support.judges.fight import disorders, fight, overlaps, twins
from tests.support.judges.takings import Anomalies, anomalies
from tests.support.processes.contenders import Contenders, takings_in
from tests.support.processes.lockers import LOCKERS, MAX_SKEW_S, ON_ONE, ON_QUORUMS, OURS, TTL_S

pytestmark = pytest.mark.chaos
SEED, PROCESSES = 1, 10
IS_SHORT = SECONDS < 120
ROUNDS = max(1, min(5, int(SECONDS / 40)))
TURN_S, REST_S = 0.8, 0.3
SHORT = ("replies-lost", "partition-asymmetric")
"""Faults of the network that a short run has, too."""
STOPPED_S = 1.6 * TTL_S
GUARD_S = guard_s(TTL_S, MAX_SKEW_S)
WITHOUT_CONFIRM = f"{OURS} without CONFIRM"
LAG_S = 1.2 * TTL_S
FIGHT_S, FIGHTS = 3.0, 4 if IS_SHORT else 20
ENOUGH, TRIES = 6, 5
"""Acquisitions from which a lock has shown something: on a busy machine the same time has fewer."""


@dataclass
class Row:
    name: str
    servers: str
    anomalies: Anomalies

    def as_dict(self) -> dict[str, Any]:
        return {"lock": self.name, "servers": self.servers, **self.anomalies.row()}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return []


def contend(folder: Path, locker: str, proxies: list[Proxy], nemeses: list[Nemesis]) -> Anomalies:
    """Have a lock contended for while each fault strikes alone; return what went wrong.

    All of that again, if hardly anybody had the lock.
    """
    deaths: dict[int, float] = {}
    for _ in range(TRIES):
        deaths |= _contend_once(folder, locker, proxies, nemeses)
        if len(takings_in(folder)) >= ENOUGH:
            break
    found = anomalies(takings_in(folder), deaths)
    assert found.acquisitions >= ENOUGH, found
    return found


def _contend_once(
    folder: Path, locker: str, proxies: list[Proxy], nemeses: list[Nemesis]
) -> dict[int, float]:
    """Return when which contender died."""
    stopped = process_nemeses("client", list, {}, stopped_s=STOPPED_S)
    lasts = [max(TURN_S, one.seconds) + REST_S for one in [*nemeses, *stopped]]
    seconds = ROUNDS * sum(lasts) + 1.0
    urls = [proxy.url for proxy in proxies]
    contenders = Contenders(folder, locker, urls, processes=PROCESSES, seconds=seconds)
    with contenders:
        nemeses = [
            *process_nemeses("holder", contenders.holders, contenders.deaths, stopped_s=STOPPED_S),
            *nemeses,
        ]
        schedule = alone(nemeses * ROUNDS, seed=SEED, seconds=TURN_S, rest=REST_S)
        with Strikes(schedule) as strikes:
            strikes.wait()
    assert strikes.errors == []
    return contenders.deaths


def restarts(servers: Servers) -> Nemesis:
    """Return the restart of all servers, one after the other, without persistence."""

    def strike(_: random.Random) -> Heal:
        for server in servers:
            server.restart()
        return lambda: None

    return Nemesis("restarted", strike)


@pytest.mark.parametrize("locker", ON_QUORUMS)
def test_locks_on_a_quorum(locker: str, rows: list[Row], tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(start_servers(5))
        time.sleep(GUARD_S)
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        network = network_nemeses([proxies, proxies])
        nemeses = [one for one in network if one.name in SHORT or not IS_SHORT]
        nemeses += [restarts(nodes)] * 3
        found = contend(tmp_path, locker, proxies, nemeses)
    rows.append(Row(locker, "5 nodes", found))
    if locker == OURS:
        assert found.total == 0, found


@pytest.mark.parametrize("locker", ON_ONE)
def test_locks_on_one_server(locker: str, rows: list[Row], tmp_path: Path) -> None:
    with ExitStack() as stack:
        [server] = stack.enter_context(start_servers(1))
        proxy = stack.enter_context(Proxy(server.port))
        found = contend(tmp_path, locker, [proxy], [restarts(Servers([server]))] * 2)
    rows.append(Row(locker, "1 server, restarted", found))


@pytest.mark.parametrize("locker", list(ON_ONE)[: 2 if IS_SHORT else None])
def test_locks_on_one_server_with_a_replica(locker: str, rows: list[Row], tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = list(stack.enter_context(start_servers(2)))
        to_clients, to_replica = (stack.enter_context(Proxy(pair[0].port)) for _ in range(2))
        follow(pair[1], to_replica)

        def failover(_: random.Random) -> Heal:
            """The replica, which is behind, takes the place of its master."""
            to_replica.replies.drops = True
            time.sleep(LAG_S)
            master, replica = pair
            master.kill()
            with replica.client() as client:
                client.execute_command("REPLICAOF", "NO", "ONE")
            to_clients.forward_to(replica.port)
            to_clients.reset()

            def heal() -> None:
                pair.reverse()
                to_replica.heal()
                to_replica.forward_to(replica.port)
                master.start()
                follow(master, to_replica)

            return heal

        found = contend(tmp_path, locker, [to_clients], [Nemesis("failover", failover)] * 3)
    rows.append(Row(locker, "1 server with a replica", found))
    # A short run may strike just as nobody has it.
    assert found.overlaps > 0 or IS_SHORT, "no lock was held that the replica had not heard of"


def follow(replica: Server, master: Proxy) -> None:
    """Have a server replicate the one behind a proxy."""
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        eventually(lambda: client.info("replication")["master_link_status"] == "up")


def test_tokens_without_confirm(rows: list[Row], five: Servers, tmp_path: Path) -> None:
    """Both fight as often, until the one that is known to be wrong has shown it."""

    def found_in(name: str, number: int) -> Anomalies:
        folder = tmp_path / f"{name}-{number}"
        folder.mkdir()
        five.reset()
        holds = fight(
            folder, five.urls, processes=12, seconds=FIGHT_S, crashes=0.0, confirms=name == OURS
        )
        faults = len(disorders(holds)) + len(twins(holds))
        return Anomalies(len(holds), len(overlaps(holds)), 0, 0, None, faults)

    for number in range(FIGHTS):
        both = {name: found_in(name, number) for name in (OURS, WITHOUT_CONFIRM)}
        rows += [Row(name, "5 nodes, short leases", found) for name, found in both.items()]
        assert both[OURS].total == 0, both
        assert both[WITHOUT_CONFIRM].overlaps == 0, both
        if both[WITHOUT_CONFIRM].token_faults:
            return
    assert IS_SHORT, f"{FIGHTS} fights without CONFIRM, and each token is right"


def test_the_others_fail_where_they_must(rows: list[Row]) -> None:
    """The controls: if nothing were found here, nothing found in ours would mean nothing."""
    by_name: dict[str, int] = dict.fromkeys(LOCKERS, 0)
    for row in rows:
        by_name[row.name] = by_name.get(row.name, 0) + row.anomalies.total
    record(
        "peers",
        seed=SEED,
        ttl_s=TTL_S,
        contenders=PROCESSES,
        violations=by_name[OURS],
        counts=[row.as_dict() for row in rows],
    )
    assert by_name[OURS] == 0
    assert sum(by_name.values()) > 0
    # A short run does not meet each of them.
    quiet = [name for name, count in by_name.items() if name != OURS and not count]
    assert quiet == [] or IS_SHORT
