"""`celery redlock doctor` finds each trap of nodes: a test sets it, on real servers of its own.

What it finds in an app, without asking a server, is said in tests/unit/operate/doctor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.operate.doctor.traps import TRAPS
from celery_redlock.testing import Server, Servers
from tests.conftest import ProxyFor, StartServers
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.clock_shim import WallClock
from tests.support.processes.ran import Ran, Run
from tests.support.rights import RIGHTS

ALL_RIGHTS = RIGHTS.split()
DENIED = re.compile("permission|can't run this command|ACL failure|NOPERM")


def found(ran: Ran) -> dict[str, list[tuple[str, str, str]]]:
    """Return what was found by code: severity, place and observation of each."""
    by_code: dict[str, list[tuple[str, str, str]]] = {}
    for one in ran.json["findings"]:
        by_code.setdefault(one["code"], []).append((one["severity"], one["where"], one["what"]))
    return by_code


def codes(ran: Ran) -> set[str]:
    return set(found(ran))


@pytest.fixture
def examine(run: Run) -> Callable[..., Ran]:
    """Run the doctor on nodes, as JSON; the guard is on only if a test says so."""
    return lambda urls, *options: run(
        urls, "doctor", "--json", options=["--restart-guard", "--max-ttl", "0.01", *options]
    )


@pytest.fixture
def three(servers: StartServers) -> Servers:
    return servers(3)


@pytest.fixture(autouse=True)
def _no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    # The servers of a test are younger than any guard: it is on, and over.
    for module in ("operate.target", "redlock.parts"):
        monkeypatch.setattr(f"celery_redlock.{module}.guard_s", lambda *_: -1.0)


Examine = Callable[..., Ran]


# ---- nodes


def test_healthy_nodes_have_no_finding(three: Servers, examine: Examine, run: Run) -> None:
    ran = examine(three.urls)
    assert ran.json["findings"] == []
    assert ran.exit_code == 0
    text = run(three.urls, "doctor", options=["--restart-guard"])
    assert text.output == "Nothing was found.\n"
    with three[0].client() as client:
        # The floor of a lock that judges a node stays for a second.
        eventually(lambda: client.dbsize() == 0)


def test_a_node_that_may_evict_keys(three: Servers, examine: Examine) -> None:
    with three[1].client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    seen = ("error", f"127.0.0.1:{three[1].port}", "maxmemory_policy:allkeys-lru")
    assert found(examine(three.urls)) == {"RL104": [seen]}


def test_a_node_that_is_down_and_a_lost_quorum(three: Servers, run: Run) -> None:
    three[0].kill()
    words = ("doctor", "--json")
    ran = run(three.urls, *words, options=["--restart-guard"])
    assert codes(ran) == {"RL102"}
    assert ran.exit_code == 0
    assert run(three.urls, *words, "--strict", options=["--restart-guard"]).exit_code == 1
    three[1].kill()
    ran = run(three.urls, *words, options=["--restart-guard"])
    assert codes(ran) == {"RL101", "RL102"}
    assert ran.exit_code == 1


def test_a_node_in_its_restart_guard(
    three: Servers, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_redlock.redlock.parts.guard_s", lambda *_: 3600.0)
    assert codes(examine(three.urls)) == {"RL101", "RL103"}


def test_a_replica_and_its_master(three: Servers, examine: Examine) -> None:
    with three[1].client() as client:
        client.replicaof("127.0.0.1", three[0].port)
        while client.info("replication")["master_link_status"] != "up":
            pass
        seen = found(examine(three.urls))
        assert seen["RL105"][0][:2] == ("error", f"127.0.0.1:{three[1].port}")
        assert seen["RL106"][0][1:] == (f"127.0.0.1:{three[0].port}", "connected_slaves:1")
        # A failover.
        client.replicaof("NO", "ONE")
    three[0].kill()
    three[0].start()
    [promoted] = found(examine(three.urls))["RL106"]
    assert promoted[1] == f"127.0.0.1:{three[1].port}"
    assert "promoted" in promoted[2]


def test_a_node_in_cluster_mode(servers: StartServers, examine: Examine) -> None:
    [node] = servers(1, "--cluster-enabled", "yes")
    assert "RL107" in codes(examine([node.url]))


def test_one_server_under_two_urls(three: Servers, examine: Examine) -> None:
    seen = found(examine([three[0].url, three[1].url, three[0].unix_url]))
    _, twin = seen["RL108"]
    assert "are the same server" in twin[2]
    assert "RL101" in seen


def test_an_even_number_and_a_single_node(three: Servers, examine: Examine) -> None:
    assert codes(examine(three.urls[:2])) == {"RL109"}
    assert codes(examine(three.urls[:1])) == {"RL110"}


@pytest.mark.parametrize(("offset", "says"), [(60.0, "ahead of"), (-60.0, "behind")])
def test_a_clock_that_is_wrong(
    new_wall_clock: Callable[[], WallClock], examine: Examine, offset: float, says: str
) -> None:
    clock = new_wall_clock()
    # Before the start, since Valkey 9.1 looks at its clock some times a second only.
    clock.step(offset)
    with Server(env=clock.env) as node:
        [(severity, _, what)] = found(examine([node.url]))["RL111"]
    assert severity == "error"
    assert says in what


def test_a_node_that_forgets_and_is_not_guarded(three: Servers, run: Run) -> None:
    settings = (("no", "always"), ("yes", "everysec"), ("yes", "always"))
    for node, (stored, synced) in zip(three, settings, strict=True):
        with node.client() as client:
            client.config_set("appendonly", stored)
            client.config_set("appendfsync", synced)
    seen = found(run(three.urls, "doctor", "--json"))["RL112"]
    assert [(severity, where) for severity, where, _ in seen] == [
        ("error", f"127.0.0.1:{node.port}") for node in three[:2]
    ]


def test_a_server_that_forbids_config_is_unknown(three: Servers, run: Run) -> None:
    urls = []
    for node in three:
        with node.client() as client:
            client.execute_command("ACL SETUSER locks on >secret ~* +@all -config -acl")
        urls.append(node.url.replace("redis://", "redis://locks:secret@"))
    ran = run(urls, "doctor", "--json")
    assert [severity for severity, *_ in found(ran)["RL112"]] == ["unknown"] * 3
    assert ran.json["unknown"] == 3
    assert ran.exit_code == 0


def test_a_round_trip_that_is_too_long(
    three: Servers, proxy_for: ProxyFor, examine: Examine
) -> None:
    proxies = [proxy_for(node) for node in three]
    for proxy in proxies:
        proxy.replies.delay = 0.1
    urls = [proxy.url for proxy in proxies]
    late = found(examine(urls, "--node-timeout", "0.05"))["RL113"]
    assert [severity for severity, *_ in late] == ["error"] * 3
    assert "the node timeout is 50 ms" in late[0][2]
    near = found(examine(urls, "--node-timeout", "0.3"))["RL113"]
    assert {severity for severity, *_ in near} <= {"warning", "error"}


def test_a_node_near_its_limit_of_connections(servers: StartServers, examine: Examine) -> None:
    [node] = servers(1, "--maxclients", "5")
    clients = [node.client() for _ in range(4)]
    try:
        for client in clients:
            client.ping()
        [(_, _, what)] = found(examine([node.url]))["RL114"]
    finally:
        for client in clients:
            client.close()
    assert what == "connected_clients:5 of maxclients:5"


def test_a_node_without_room_for_the_connections_of_the_fleet(
    servers: StartServers, run: Run
) -> None:
    [node] = servers(1, "--maxclients", "500")
    assert "RL120" not in found(run([node.url], "doctor", "--json"))
    assert "RL120" not in found(run([node.url], "doctor", "--json", "--fleet", "100", "2"))
    [(severity, where, what)] = found(run([node.url], "doctor", "--json", "--fleet", "100", "3"))[
        "RL120"
    ]
    assert (severity, where) == ("error", node.url.removeprefix("redis://"))
    assert what == (
        "100 workers with 3 pool processes each open up to 600 connections, maxclients:500"
    )


def test_a_node_that_is_nearly_full_and_then_refuses(
    servers: StartServers, examine: Examine
) -> None:
    [node] = servers(1)
    with node.client() as client:
        used: Any = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.1))
        assert "RL115" in codes(examine([node.url]))
        client.config_set("maxmemory", 1000)
        [(severity, _, what)] = found(examine([node.url]))["RL118"]
    assert severity == "error"
    assert "OOM" in what


def user_of(node: Server, *rules: str) -> str:
    """Give a node a user with these rights; return its URL."""
    with node.client() as client:
        client.execute_command("ACL SETUSER locks reset on >secret", *rules)
    return node.url.replace("redis://", "redis://locks:secret@")


def test_the_documented_rights_are_enough(three: Servers, examine: Examine) -> None:
    urls = [user_of(node, *ALL_RIGHTS) for node in three]
    assert examine(urls).json["findings"] == []
    assert examine([f"{url}?protocol=3" for url in urls]).json["findings"] == []


def test_each_right_that_is_missing_is_reported(servers: StartServers, examine: Examine) -> None:
    [node] = servers(1)
    reported: dict[str, str] = {}
    for missing in ALL_RIGHTS:
        if missing == "resetchannels":
            continue  # it gives none
        url = user_of(node, *(right for right in ALL_RIGHTS if right != missing))
        [what] = {
            f"{code}, {severity}"
            for code, ones in found(examine([f"{url}/1"])).items()
            for severity, _, what in ones
            if DENIED.search(what)
        }
        reported[missing] = what
    record("least_privilege--missing", missing_right_reported=reported)


@pytest.mark.parametrize(
    "rules",
    [
        ("~other:*", *ALL_RIGHTS[1:]),
        tuple(right for right in ALL_RIGHTS if right != "+set"),
        tuple(right for right in ALL_RIGHTS if right != "+evalsha"),
        # Only a script runs it.
        tuple(right for right in ALL_RIGHTS if right != "+incr"),
    ],
)
def test_rights_that_are_too_narrow(
    servers: StartServers, examine: Examine, rules: tuple[str, ...]
) -> None:
    [node] = servers(1)
    [(severity, _, what)] = found(examine([user_of(node, *rules)]))["RL116"]
    assert severity == "error"
    assert re.search("permission|can't run this command", what)


def test_an_open_node_on_the_network(three: Servers, examine: Examine) -> None:
    # This leads to the machine itself, but is not an address of the loopback.
    urls = [f"redis://0.0.0.0:{node.port}" for node in three]
    seen = found(examine(urls))
    assert set(seen) == {"RL117", "RL119"}
    assert seen["RL117"][0][2] == "user default: +@all, without a password"


# ---- app


def test_every_trap_of_the_nodes_has_a_test_here() -> None:
    from pathlib import Path  # noqa: PLC0415

    text = Path(__file__).read_text(encoding="utf-8")
    of_nodes = [trap.code for trap in TRAPS if trap.code.startswith("RL1")]
    assert [code for code in of_nodes if f'"{code}"' not in text] == []
