"""A command that is a fork of a process with its imports done is like a new interpreter."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.start import Forked, ForkServer, is_alike, run, start
from tests.support.processes.workers import Worker, is_alive
from tests.support.requirements import linux_only
from tests.support.root import ROOT

pytestmark = linux_only("forks processes with their imports done")

TELLING = [sys.executable, "-m", "tests.support.processes.telling"]
WORKER = [sys.executable, "-m", Worker.celery, "-A", "app", "worker", "--pool", "prefork"]


@pytest.fixture(scope="module")
def _server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def server(_server: ForkServer) -> ForkServer:
    return _server


def forked(server: ForkServer, command: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    """Return what comes of a command that is a fork: its status, output and errors."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        status = server.fork(command, env, output, errors).wait(PATIENCE)
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read()


@pytest.mark.parametrize("way", ["return", "exit", "say", "raise", "interrupt", "thread"])
def test_a_fork_finds_and_ends_as_a_new_interpreter_does(
    server: ForkServer, way: str, tmp_path: Path
) -> None:
    command, env = [*TELLING, way], os.environ | {"TMPDIR": str(tmp_path)}
    del env["PYTEST_CURRENT_TEST"]  # which the server has
    new = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, start_new_session=True,
    )  # fmt: skip
    status, output, errors = forked(server, command, env)
    (found, *rest), (new_found, *new_rest) = output.splitlines(), new.stdout.splitlines()
    assert json.loads(found) == json.loads(new_found)
    assert (status, rest) == (new.returncode, new_rest)
    assert errors.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_forks_are_killed_and_reaped_like_children(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process = server.fork([*TELLING, "wait"], dict(os.environ), log, log)
    assert process.poll() is None
    assert os.getpgid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    os.kill(process.pid, signal.SIGSTOP)
    process.kill()
    eventually(lambda: not is_alive(process.pid))
    os.kill(process.pid, 0)  # nobody else has its number until its end has been asked for
    assert process.wait() == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)
    process.kill()  # nobody


def test_any_number_of_threads_may_wait_for_one_fork(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        for _ in range(10):
            process = server.fork([*TELLING, "wait"], dict(os.environ), log, log)
            with ThreadPoolExecutor(8) as threads:
                waiting = [threads.submit(process.wait, PATIENCE) for _ in range(8)]
                os.kill(process.pid, signal.SIGKILL)
                assert {one.result() for one in waiting} == {-signal.SIGKILL}


def test_forks_draw_different_random_numbers(server: ForkServer, tmp_path: Path) -> None:
    drawn = {
        forked(server, [sys.executable, "-m", f"{__name__}"], dict(os.environ))[1] for _ in range(3)
    }
    assert len(drawn) == 3


def test_a_command_runs_as_a_fork_and_returns_what_it_wrote() -> None:
    ran = run([sys.executable, "-m", "celery", "--no-such-option"], {})
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "No such option" in ran.stderr


def test_a_command_that_takes_too_long_is_killed() -> None:
    listening = [sys.executable, "-m", "celery", "-b", "memory://", "events", "--dump"]
    assert is_alike(listening, os.environ)  # by now there is a server
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(subprocess.TimeoutExpired):
        run(listening, {}, timeout=1)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_fork_that_cannot_begin_says_why(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(RuntimeError, match="illegal envir"):
        server.fork([*TELLING, "return"], {"a=b": "c"}, log, log)
    assert forked(server, [*TELLING, "exit"], dict(os.environ))[0] == 3


def test_a_server_that_has_died_says_so(tmp_path: Path) -> None:
    server = ForkServer()
    with (tmp_path / "log").open("w") as log:
        process = server.fork([*TELLING, "interrupt"], dict(os.environ), log, log)
        os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="the fork server has ended with status -9"):
            server.fork([*TELLING, "return"], dict(os.environ), log, log)
    eventually(lambda: not is_alive(process.pid), "its forks end with it")
    with pytest.raises(RuntimeError, match="the fork server has ended with status -9"):
        process.poll()
    server.close()


def test_a_server_that_cannot_import_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_KEEPALIVE", "no number")  # read by an import of Celery
    server = ForkServer()
    with pytest.raises(RuntimeError, match=r"ended with status 1[\s\S]*no number"):
        server.status_of(1)
    server.close()


@pytest.mark.parametrize(
    ("command", "env", "expected"),
    [
        (WORKER, {}, True),
        (WORKER, {"REDLOCK_TEST_FOLDER": "folder", "PYTEST_CURRENT_TEST": "another"}, True),
        ([sys.executable, "-m", "celery", "redlock", "status"], {}, True),
        ([*WORKER[:-1], "gevent"], {}, False),
        ([*WORKER, "--pool=eventlet"], {}, False),
        ([sys.executable, "-W", "error", *WORKER[1:]], {}, False),
        (["python3", *WORKER[1:]], {}, False),
        ([sys.executable, "-u", *WORKER[1:]], {}, False),
        ([sys.executable, "-c", "pass"], {}, False),
        (WORKER, {"PYTHONPATH": "folder"}, False),
        (WORKER, {"LD_PRELOAD": "shim.so"}, False),
        (WORKER, {"C_FORCE_ROOT": "1"}, False),
        (WORKER, {"TZ": "Asia/Tokyo"}, False),
    ],
)
def test_only_what_comes_to_the_same_is_forked(
    command: list[str], env: dict[str, str], expected: bool
) -> None:
    assert is_alike(command, os.environ | env) is expected


def test_a_started_process_gets_its_log_and_environment(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    command = [sys.executable, "-m", "celery", "-b", "memory://", "report"]
    for is_fresh in (False, True):
        process = start(command, log, {"REDLOCK_TOLD": "yes"}, appends=True, is_fresh=is_fresh)
        assert process.wait(PATIENCE) == 0
        assert isinstance(process, Forked) is not is_fresh
    assert log.read_text().startswith("before\n")
    assert log.read_text().count("software -> celery:") == 2


if __name__ == "__main__":
    print(random.random())  # noqa: T201 - for the test above
