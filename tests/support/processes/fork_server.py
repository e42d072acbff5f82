"""One process that has imported Celery and the package, and starts `python -m …` as forks of it.

    python tests/support/processes/fork_server.py    # its standard input is a socket

A request is one message of JSON on the socket, and so is its answer:

    {"command": […], "env": {…}} with two descriptors, the fork's output and errors -> {"pid": …}
    {"wait": pid} -> {"status": …}, as of `os.waitpid`; null while the process runs

A fork that cannot begin answers {"error": …}. The end of the socket ends the server, and with it
its forks. It has one thread, and nothing but Celery's own imports has run in it: whatever connects
to a signal of Celery's when it is imported is left for the fork to import.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
import types
from typing import Any

PRELOADED = (
    "celery.bin.celery",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.app.routes",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "celery_redlock.beat.scheduler",
    "celery_redlock.config.app_lock",
    "celery_redlock.config.task_config",
    "celery_redlock.execution.entry",
    "celery_redlock.execution.run",
    "celery_redlock.keys",
    "celery_redlock.messages.requeue",
    "celery_redlock.messages.reservation",
    "celery_redlock.pools.prefork_keeper",
    "celery_redlock.redlock.task_lock",
    "celery_redlock.worker.node_watch",
)
_LONGEST_REQUEST = 1 << 20
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def serve(channel: socket.socket) -> list[str]:
    """Answer requests until the socket ends; in a fork, return the command that it is to run.

    Raises:
        SystemExit: The socket has ended.
    """
    server = os.getpid()
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, _LONGEST_REQUEST, 2)
        if not message:
            raise SystemExit
        request = json.loads(message)
        try:
            if "wait" in request:
                pid, status = os.waitpid(request["wait"], os.WNOHANG)
                _answer(channel, status=status if pid else None)
            elif not os.fork():
                _begin(request, descriptors, server)
                _answer(channel, pid=os.getpid())
                channel.close()
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                command: list[str] = request["command"]
                return command
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second server
            _answer(channel, error=traceback.format_exc())
            if os.getpid() != server:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _answer(channel: socket.socket, **answer: Any) -> None:
    channel.send(json.dumps(answer).encode())


def _begin(request: dict[str, Any], output: list[int], server: int) -> None:
    """Give a fork what a process gets from who starts it."""
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    os.environ.clear()
    os.environ.update(request["env"])
    for stream, descriptor in enumerate(output, 1):
        os.dup2(descriptor, stream)


def _run(command: list[str]) -> None:
    """Do what the interpreter does of `python -m module arguments…`."""
    _, _, module, *arguments = sys.orig_argv = command
    sys.argv = [module, *arguments]
    sys.modules["__main__"] = types.ModuleType("__main__")
    importlib.invalidate_caches()
    run: Any = runpy
    run._run_module_as_main(module)


def main() -> None:
    """Import, and serve; a fork goes on with its command, and ends as the interpreter ends it."""
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as `python -m` has it
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for module in PRELOADED:
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    # To collect what the modules are made of costs each fork more at its end than all the rest.
    gc.collect()
    gc.freeze()
    _run(serve(channel))


if __name__ == "__main__":
    main()
