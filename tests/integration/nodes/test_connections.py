"""The ways to reach a node: TLS, unix sockets, RESP3, users and passwords, databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_redlock.redlock import LockHeld, QuorumUnavailable
from celery_redlock.redlock.protocol.scripts import lock_keys
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.judges.nodes import holder_on
from tests.support.processes.certificates import Authority, TlsServers, tls_servers
from tests.support.requirements import redis_versions
from tests.support.rights import RIGHTS
from tests.support.root import ROOT

SECRET = "open-sesame"  # noqa: S105 - of servers that live for a second


def assert_locks(new_redlock: NewRedlock, urls: list[str]) -> None:
    """Everything a lock does, done on these nodes."""
    redlock, rival = new_redlock(urls), new_redlock(urls)
    with redlock.lock("k") as lease:
        lease.ensure()
        with pytest.raises(LockHeld):
            rival.acquire("k")
        assert redlock.extend_all([lease] * 300) == [None] * 300
    second = rival.acquire("k")
    assert second.token > lease.token
    rival.release(second, done="task")
    assert redlock.release_owner("k", redlock.reserve("k", 60).owner)
    reservation = redlock.reserve("k", 60)
    rival.release(rival.acquire_for_task("k", supersedes=reservation.owner, unless_done=("other",)))
    rival.mark_done("k", "task")
    redlock.check()


# ---- unix sockets


def test_nodes_are_reached_through_unix_sockets(five: Servers, new_redlock: NewRedlock) -> None:
    assert_locks(new_redlock, [server.unix_url for server in five])


def test_ways_can_be_mixed(five: Servers, new_redlock: NewRedlock) -> None:
    assert_locks(
        new_redlock,
        [five[0].unix_url, five[1].url, f"valkey://localhost:{five[2].port}/0?protocol=3"],
    )


def test_a_node_behind_a_unix_socket_is_named_by_its_path(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock([five[0].unix_url, "unix:///nowhere/redis.sock", five[2].url])
    assert [node.name for node in redlock.nodes] == [
        f"unix:{five[0].folder}/redis.sock",
        "unix:/nowhere/redis.sock",
        f"127.0.0.1:{five[2].port}",
    ]
    redlock.acquire("k").ensure()
    assert list(redlock.check()) == ["unix:/nowhere/redis.sock"]


# ---- protocol and database


@redis_versions
def test_resp3_is_spoken_when_it_is_asked_for(redis_binary: Path, new_redlock: NewRedlock) -> None:
    with Servers(Server(binary=redis_binary) for _ in range(3)) as three:
        assert_locks(new_redlock, [f"{server.url}?protocol=3" for server in three])
        with three[0].client() as client:
            seen = [one for one in client.client_list() if one.get("resp")]
    assert not seen or "3" in {one["resp"] for one in seen}


def test_what_a_server_pushes_is_no_reply(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock([f"{five[0].url}?protocol=3"])
    redlock.release(redlock.acquire("k"))
    [channel] = redlock._pool._idle
    link = channel._connections.by_node[0]
    assert link
    with five[0].client() as client:
        [mine] = [one for one in client.client_list() if one["cmd"].startswith("evalsha")]
        link._socket.send(b"*2\r\n$9\r\nSUBSCRIBE\r\n$4\r\nnews\r\n")
        eventually(lambda: client.pubsub_numsub("news")[0][1] == 1)
        for _ in range(5):
            client.publish("news", "x" * 1000)
            redlock.release(redlock.acquire("k"))
        assert mine["id"] in {one["id"] for one in client.client_list()}


def test_the_database_of_the_url_is_used(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock([f"{server.url}/7" for server in five])
    lease = redlock.acquire("k")
    assert holder_on(five[0], "k") is None
    with five[0].client(db=7) as client:
        eventually(lambda: client.get(lock_keys("redlock", "k")[0]) == lease.owner.encode())
    new_redlock(five.urls).acquire("k")


# ---- users and passwords


def test_the_documentation_names_the_rights_that_will_do() -> None:
    page = ROOT / "docs" / "how-to" / "run-the-nodes.md"
    assert f"user locks on >secret {RIGHTS}\n" in page.read_text(encoding="utf-8")


@contextmanager
def protected(count: int = 3) -> Iterator[Servers]:
    """Servers with a password, and a user who may do no more than the lock needs."""
    with Servers(Server("--requirepass", SECRET) for _ in range(count)) as servers:
        for server in servers:
            with server.client(password=SECRET) as client:
                client.execute_command(
                    "ACL", "SETUSER", "locker", "on", f">{SECRET}", *RIGHTS.split()
                )
        yield servers


def with_password(server: Server, user: str = "", password: str = SECRET) -> str:
    return server.url.replace("redis://", f"redis://{user}:{password}@")


@pytest.mark.parametrize("user", ["", "default", "locker"])
def test_users_and_passwords_are_sent(new_redlock: NewRedlock, user: str) -> None:
    with protected() as three:
        assert_locks(new_redlock, [with_password(server, user) for server in three])
        assert_locks(new_redlock, [f"{with_password(server, user)}?protocol=3" for server in three])


def test_a_password_is_taken_from_the_query(new_redlock: NewRedlock) -> None:
    with protected() as three:
        assert_locks(new_redlock, [f"{server.url}?password={SECRET}" for server in three])
        assert_locks(new_redlock, [f"{server.unix_url}?password={SECRET}" for server in three])


@pytest.mark.parametrize("password", ["wrong-" + SECRET, ""])
def test_a_wrong_password_is_an_error_that_does_not_show_it(
    new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with protected() as three:
        urls = [with_password(server, "locker", password) for server in three]
        redlock = new_redlock(urls)
        with pytest.raises(QuorumUnavailable) as caught:
            redlock.acquire("k")
        assert len(caught.value.errors) >= 2
        for error in caught.value.errors.values():
            assert "password" in error or "uthentication" in error
        assert_secret_is_kept(redlock, caught.value, caplog)


def test_no_password_is_logged_or_shown_when_nodes_come_and_go(
    new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with protected() as three:
        redlock = new_redlock([with_password(server, "locker") for server in three])
        lease = redlock.acquire("k")
        for server in three:
            server.kill()
        with pytest.raises(QuorumUnavailable) as caught:
            redlock.extend(lease)
        assert_secret_is_kept(redlock, caught.value, caplog)
        with pytest.raises(QuorumUnavailable) as caught:
            redlock.acquire("k")
        assert_secret_is_kept(redlock, caught.value, caplog)


def assert_secret_is_kept(
    redlock: TaskLock, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    assert caplog.text
    shown = [caplog.text, repr(redlock), repr(redlock.nodes), str(redlock.check())]
    cause: BaseException | None = error
    while cause is not None:
        shown += [str(cause), repr(cause), repr(cause.args)]
        cause = cause.__cause__ or cause.__context__
    assert SECRET not in "\n".join(shown)


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(authority: Authority) -> Iterator[TlsServers]:
    with tls_servers(authority, authority.sign("nodes"), 3) as servers:
        yield servers


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_nodes_are_reached_through_tls(
    new_redlock: NewRedlock, tls: TlsServers, authority: Authority, scheme: str, protocol: int
) -> None:
    urls = tls.urls({"ssl_ca_certs": authority.certificate, "protocol": protocol})
    assert_locks(new_redlock, [url.replace("rediss", scheme) for url in urls])


def test_many_replies_arrive_through_tls(
    new_redlock: NewRedlock, tls: TlsServers, authority: Authority
) -> None:
    redlock = new_redlock(tls.urls({"ssl_ca_certs": authority.certificate}))
    leases = [redlock.acquire(f"k{number}") for number in range(100)]
    for _ in range(5):
        assert redlock.extend_all(leases * 20) == [None] * 2000
    for lease in leases:
        redlock.release(lease)
