"""The embedded servers that every other test stands on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading

import psutil
import pytest
import redis

from celery_redlock.testing import Server, free_port, servers, start_servers
from tests.support.eventually import eventually
from tests.support.requirements import linux_only
from tests.support.root import ROOT


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # which nobody may be there to reap
    except psutil.NoSuchProcess:
        return False


def test_a_server_answers_on_tcp_and_on_its_unix_socket() -> None:
    with Server() as server:
        with server.client() as client:
            client.set("key", "value")
            assert client.info("server")["process_id"] == server.pid
        with redis.Redis.from_url(server.unix_url) as client:
            assert client.get("key") == b"value"


def test_a_stopped_server_leaves_neither_process_nor_folder() -> None:
    with Server() as server:
        pid, folder = server.pid, server.folder
        assert folder.is_dir()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_a_restarted_server_has_its_port_and_an_empty_memory() -> None:
    with Server() as server:
        port, pid = server.port, server.pid
        with server.client() as client:
            client.set("key", "value")
        server.restart()
        assert server.port == port
        assert server.pid != pid
        with server.client() as client:
            assert client.get("key") is None


def test_a_persistent_server_remembers_across_a_crash() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        with server.client() as client:
            client.set("key", "value")
        server.kill()
        assert not server.is_running
        server.start()
        with server.client() as client:
            assert client.get("key") == b"value"


def test_a_paused_server_is_silent_until_it_is_resumed() -> None:
    with Server() as server, server.client(socket_timeout=0.2) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        with server.client() as patient:
            assert patient.ping()


def test_a_paused_server_can_be_stopped() -> None:
    with Server() as server:
        server.pause()


def test_reset_undoes_whatever_was_done_to_servers() -> None:
    with start_servers(4) as four:
        for server in four:
            with server.client() as client:
                client.set("key", "value")
        four[0].pause()
        four[1].kill()
        four[2].stop()
        with four[3].client() as client:
            client.client_pause(600_000)
        four.reset()
        for server in four:
            with server.client() as client:
                assert client.dbsize() == 0
                client.set("key", "value")


def test_a_taken_port_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as first:
        offers = iter([first.port, free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(offers))
        with Server() as second:
            assert second.port != first.port
            with second.client() as client:
                assert client.info("server")["process_id"] == second.pid


def test_a_server_that_fails_to_start_shows_its_log() -> None:
    """It leaves nothing behind."""
    server = Server("--no-such-setting", "1")
    with pytest.raises(RuntimeError, match="no-such-setting"):
        server.start()
    assert not server.is_running
    with pytest.raises(RuntimeError, match="not started or is stopped"):
        _ = server.folder


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Server()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server, server.client() as client:
        assert client.ping()


@linux_only("kills processes with their parent")
def test_no_server_outlives_a_killed_parent() -> None:
    program = """
import sys
from celery_redlock.testing import start_servers
with start_servers(2) as servers:
    servers[1].pause()
    print(*(server.pid for server in servers), flush=True)
    sys.stdin.read()
"""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as parent,
    ):
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        os.kill(parent.pid, signal.SIGKILL)
        eventually(lambda: not any(is_alive(child) for child in children))
