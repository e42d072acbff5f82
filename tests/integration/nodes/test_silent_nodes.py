"""Nodes that look healthy and do not vote: `check` says which, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.redlock import QuorumUnavailable
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock, StartServers
from tests.support.locking import name_of
from tests.support.requirements import redis_versions


def test_a_healthy_quorum_is_written_to_and_left_clean(
    five: Servers, new_redlock: NewRedlock
) -> None:
    assert new_redlock(five.urls).check() == {}
    for server in five:
        with server.client() as client:
            keys = client.keys("*")
            assert isinstance(keys, list)
            assert all(client.pttl(key) <= 1000 for key in keys)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [("maxmemory", "1", "OOM"), ("min-replicas-to-write", "1", "NOREPLICAS")],
)
def test_a_node_that_refuses_writes_is_named_and_logged_once(
    servers: StartServers, new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture,
    setting: str, value: str, error: str,
) -> None:  # fmt: skip
    three = servers(3)
    redlock = new_redlock(three.urls)
    with three[1].client() as client:
        client.config_set(setting, value)
        for _ in range(3):
            redlock.release(redlock.acquire("k"))
            problems = redlock.check()
            assert list(problems) == [name_of(three[1])]
            assert problems[name_of(three[1])].startswith(f"refuses to write: {error}")
        assert caplog.text.count("node refuses writes") == 1
        client.config_set(setting, "0")
    assert redlock.check() == {}
    with three[1].client() as client:
        client.config_set(setting, value)
    redlock.check()
    assert caplog.text.count("node refuses writes") == 2, "its state has changed twice"


@redis_versions
@pytest.mark.parametrize(
    "rules", [("~redlock:*", "+@all", "-set"), ("~other:*", "+@all")], ids=["command", "key"]
)
def test_a_missing_right_within_a_script_is_logged_once(
    redis_binary: Path, new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture,
    rules: tuple[str, ...],
) -> None:  # fmt: skip
    with Server(binary=redis_binary) as node:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "locker", "on", "nopass", "&*", *rules)
        redlock = new_redlock([node.url.replace("redis://", "redis://locker:x@")])
        for _ in range(2):
            with pytest.raises(QuorumUnavailable):
                redlock.acquire("k")
    assert caplog.text.count("node refuses writes") == 1


@redis_versions
def test_who_became_a_replica_is_connected_to_anew(
    redis_binary: Path, new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary=redis_binary) as node, Server(binary=redis_binary) as master:
        redlock = new_redlock([node.url])
        redlock.release(redlock.acquire("k"))
        with node.client() as client:
            client.replicaof("127.0.0.1", master.port)
        with pytest.raises(QuorumUnavailable):
            redlock.acquire("k")
    assert "error=it became a replica" in caplog.text
