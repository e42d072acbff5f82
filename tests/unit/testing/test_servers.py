"""Embedded servers, as far as no server has to run; tests/integration runs real ones."""

from __future__ import annotations

import os
import socket
import sys
from itertools import islice
from pathlib import Path

import pytest

from celery_redlock.testing import Server, launch
from celery_redlock.testing.launch import _BLOCK, _own_ports, free_port
from celery_redlock.testing.servers import Servers


def program(folder: Path, body: str) -> Path:
    """Return a program that is started in place of a server."""
    path = folder / "server"
    path.write_text(f"#!{sys.executable} -IS\n{body}\n")
    path.chmod(0o755)
    return path


class Started(Server):
    """A server that only notes what was asked of it."""

    def __init__(self, log: list[str], name: str, *, fails: bool = False) -> None:
        super().__init__()
        self._log, self._name, self._fails = log, name, fails

    def start(self) -> None:
        self._log.append(f"start {self._name}")
        if self._fails:
            raise RuntimeError("did not start")

    def stop(self) -> None:
        self._log.append(f"stop {self._name}")


def test_ports_are_below_those_that_systems_give_to_clients() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 1
    assert all(1024 < port < 32_768 for port in ports)


def test_a_port_in_use_is_not_chosen() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in {free_port() for _ in range(2 * _BLOCK)}
    assert taken in {free_port() for _ in range(2 * _BLOCK)}


def test_ports_are_shared_only_once_all_are_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = min(free_port() for _ in range(2 * _BLOCK)) - 1
    monkeypatch.setattr(launch, "_PORTS", range(first, first + _BLOCK))
    shared = islice(_own_ports.__wrapped__(-1), _BLOCK)
    assert {*shared} == {*range(first, first + _BLOCK)}


@pytest.mark.parametrize("attribute", ["folder", "process", "pid", "unix_url"])
def test_a_server_that_was_not_started_says_so(attribute: str) -> None:
    server = Server()
    with pytest.raises(RuntimeError, match=f"on port {server.port} was not started or is stopped"):
        getattr(server, attribute)
    assert not server.is_running


def test_a_server_that_was_not_started_can_be_stopped() -> None:
    server = Server()
    server.stop()
    server.kill()
    assert "not running" in repr(server)


def test_a_server_that_exits_shows_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    binary = program(
        tmp_path,
        "print('Bad directive in the configuration')\nraise SystemExit(1)",
    )
    server = Server(binary=binary)
    with pytest.raises(RuntimeError, match=r"(?s)did not start on port.*Bad directive"):
        server.start()
    assert not server.is_running
    with pytest.raises(RuntimeError, match="was not started or is stopped"):
        _ = server.folder


def test_arguments_and_environment_reach_the_server(tmp_path: Path) -> None:
    binary = program(
        tmp_path, "import os, sys\nprint(sys.argv[1:], os.environ['MINE'])\nraise SystemExit(1)"
    )
    server = Server("--appendonly", "yes", binary=binary, env={"MINE": "it is set"})
    with pytest.raises(RuntimeError) as caught:
        server.start()
    assert f"'--port', '{server.port}', '--bind', '127.0.0.1'" in str(caught.value)
    assert "'--appendonly', 'no', '--appendonly', 'yes'] it is set" in str(caught.value)


def test_servers_that_do_not_all_start_are_all_stopped() -> None:
    log: list[str] = []
    servers = Servers([Started(log, "a"), Started(log, "b", fails=True), Started(log, "c")])
    with pytest.raises(RuntimeError, match="did not start"), servers:
        pytest.fail("entered")
    assert log == ["start a", "start b", "stop a", "stop b", "stop c"]


def test_servers_are_stopped_though_their_block_fails() -> None:
    log: list[str] = []
    servers = Servers([Started(log, "a"), Started(log, "b")])
    with pytest.raises(ZeroDivisionError), servers:
        raise ZeroDivisionError
    assert log == ["start a", "start b", "stop a", "stop b"]


def test_servers_have_a_url_each_in_order() -> None:
    servers = Servers([Server(), Server()])
    assert servers.urls == [f"redis://127.0.0.1:{server.port}" for server in servers]


def test_a_forked_child_does_not_stop_its_parent_s_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    server = Started(log, "a")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        server._stop_at_exit()
    assert log == []
    server._stop_at_exit()
    assert log == ["stop a"]
