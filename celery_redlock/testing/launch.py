"""Start of a server process that ends with this process, and its port."""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Below the range that systems give to clients: a server that is down for a while must find its port
# free again, and a client that connects to a dead port of that range may meet itself there.
_PORTS = range(20_000, 30_000)
_BLOCK = 200
"""How many of them a process claims, by the first."""

# Asks the kernel to kill this process with its parent, unless the parent is gone already, and
# becomes the program. Not a preexec_fn: those are unsafe as soon as there are threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and that nobody else will take.

    No client's connection has it, and no other process that asks here: while a server is down, its
    port is free, and another test's server there would answer in its place.
    """
    ports = _own_ports(os.getpid())
    while True:
        port = next(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@functools.cache
def _own_ports(_owner_pid: int) -> Iterator[int]:
    """Return ports that are this process's, in turn; if all are claimed, those of all processes."""
    chance = secrets.SystemRandom()
    starts = range(_PORTS.start, _PORTS.stop, _BLOCK)
    for start in chance.sample(starts, len(starts)):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", start))
        except OSError:
            claim.close()
            continue
        claim.detach()  # it stands as long as the process
        return itertools.cycle(range(start + 1, start + _BLOCK))
    return itertools.cycle(chance.sample(_PORTS, len(_PORTS)))


@functools.cache
def _spawner(_owner_pid: int) -> ThreadPoolExecutor:
    """Return this process's one thread that starts others.

    The kernel's "kill with the parent" means the thread that started the child, so that thread has
    to live as long as the process.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="start-process")


def launch(
    command: list[str],
    log: Path,
    env: Mapping[str, str],
    *,
    cwd: Path | None = None,
    appends: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that never outlives this one: on Linux not even if this one is killed.

    Args:
        command: Program and arguments.
        log: File that gets its output.
        env: Environment variables to add to those of this process.
        cwd: Its working folder; None for that of this process.
        appends: Whether what the file has already is kept.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-IS", "-c", _LAUNCHER, str(os.getpid()), *command]
    with log.open("ab" if appends else "wb") as output:
        started = _spawner(os.getpid()).submit(
            lambda: subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | env,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the process
            )
        )
        return started.result()
