"""Brokers that a test has to itself, to be stopped and started again with what they hold."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.testing import Server, free_port
from tests.support.eventually import eventually
from tests.support.requirements import unmet

from .start import kill_group

if TYPE_CHECKING:
    from typing_extensions import Self

_DEBIANS = Path("/usr/lib/rabbitmq/bin")
"""Beside Debian's own command, which as root becomes another user and forgets the environment."""
_START_S = 600.0
FORWARD_AGAIN_MS = 5_000
"""After how long RabbitMQ again forwards a delayed message that a queue did not take, for example
since it was not up yet after a restart. By default 180 s, longer than any test waits: see
docs/explanation/endings.md, "Limits"."""


QUORUM = {"task_default_queue_type": "quorum"}
# Whoever publishes has to know that it is published.
CONFIRMING = {"broker_transport_options": {"confirm_publish": True}}
BROKERS: dict[str, dict[str, Any]] = {
    "classic": CONFIRMING,
    "quorum, direct": CONFIRMING | QUORUM,
    # Only with such an exchange does Celery let the broker keep a message until its eta.
    "quorum, topic": CONFIRMING | QUORUM | {"task_default_exchange_type": "topic"},
    # Else what a dead worker had comes back in an hour, or in minutes if it died as it looked for
    # what others had.
    "redis": {"broker_transport_options": {"visibility_timeout": 8, "unacked_mutex_expire": 5}},
}
"""Celery's configuration for each kind of queue, those of RabbitMQ and that of Redis."""


class Service(Protocol):
    """A server that a project stands on."""

    port: int

    def restart(self) -> None:
        """End it in an orderly way, and start it again; what it holds stays."""

    def url_at(self, port: int) -> str:
        """Return its address for Celery, behind a proxy that listens there."""


class Broker(Service, Protocol):
    """What a storm needs of a broker."""

    def left(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages it has, delivered or not, by queue; without empty ones."""

    def details(self) -> str:
        """Return for people where its messages are, and who consumes them."""


class RedisBroker(Server):
    """A Redis server that writes down everything at once."""

    def __init__(self) -> None:
        super().__init__("--appendonly", "yes", "--appendfsync", "always")

    def url_at(self, port: int) -> str:
        """Return its address for Celery, behind a proxy that listens there."""
        return f"redis://127.0.0.1:{port}/0"

    def left(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in `queues`, or are delivered from any."""
        with self.client() as client:
            counts = {queue: int(str(client.llen(queue))) for queue in queues}
            counts["unacked"] = int(str(client.hlen("unacked")))
        return {name: count for name, count in counts.items() if count}

    def details(self) -> str:
        """Return how long its lists are, and who is connected."""
        with self.client() as client:
            lists = {key: client.llen(key) for key in client.scan_iter(_type="list")}
            return f"{lists} unacked={client.hgetall('unacked')} {client.client_list()}"


class RabbitMQ:
    """A RabbitMQ node in a folder of its own; started and stopped by `with`.

    Ends the test if this machine has none.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="redlock-rabbitmq-"))
        self._epmd_port = free_port()
        (self._folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        setting = f"{{dead_letter_worker_publisher_confirm_timeout, {FORWARD_AGAIN_MS}}}"
        (self._folder / "advanced.config").write_text(f"[{{rabbit, [{setting}]}}].\n")
        (self._folder / "plugins").write_text("[].\n")
        self._env = os.environ | {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "chaos@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
        }
        self._names: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not (_command("rabbitmq-server") and _command("epmd")):
            unmet("no rabbitmq-server on this machine", "rabbitmq-server")
        # Erlang would start one that stays when the node has gone.
        self._names = subprocess.Popen([_command("epmd"), *self._at()], env=self._env)
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end(signal.SIGKILL)
            if self._names:
                self._names.kill()
                self._names.wait()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its address for Celery."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return its address for Celery, behind a proxy that listens there."""
        return f"amqp://guest:guest@127.0.0.1:{port}//"

    def restart(self) -> None:
        """End it in an orderly way, and start it again; what is in its queues stays."""
        self._end(signal.SIGTERM)
        self._start()

    def left(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages are in `queues` or, delayed, on their way there."""
        return {
            name: count
            for name, count in self.counts("messages").items()
            if count and (name in queues or name.startswith("celery_delayed_"))
        }

    def counts(self, what: str) -> dict[str, int]:
        """Return a number of each queue: `messages`, all of them, or `messages_ready`."""
        told = self._tell("rabbitmqctl", "list_queues", "name", what)
        pairs = (line.rsplit("\t", 1) for line in told.splitlines()[1:])
        return {name: int(count) for name, count in pairs}

    def details(self) -> str:
        """Return how many messages of each queue are ready and delivered, and its consumers."""
        columns = ("name", "messages_ready", "messages_unacknowledged", "consumers")
        return self._tell("rabbitmqctl", "list_queues", *columns)

    @contextmanager
    def without(self, queue: str) -> Iterator[None]:
        """Let a quorum queue be down, as each is for a while when the broker starts; by `with`."""
        server = f"quorum_queues, {{'%2F_{queue}', node()}}"
        self._tell("rabbitmqctl", "eval", f"ra:stop_server({server}).")
        try:
            yield
        finally:
            self._tell("rabbitmqctl", "eval", f"ra:restart_server({server}).")

    def set_alarm(self, *, is_on: bool) -> None:
        """Begin or end a memory alarm, under which it does not read from who publishes."""
        self._tell("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001" if is_on else "0.6")

        def is_as_asked() -> bool:
            return ("Memory alarm" in self._tell("rabbitmq-diagnostics", "alarms")) == is_on

        eventually(is_as_asked)

    def _tell(self, tool: str, *command: str) -> str:
        """Return what one of its command line tools prints."""
        return subprocess.run(
            [_command(tool), "--quiet", *command],
            env=self._env, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    def _at(self) -> list[str]:
        return ["-port", str(self._epmd_port), "-address", "127.0.0.1"]

    def _start(self) -> None:
        with (self._folder / "out").open("wb") as out:
            self._process = process = subprocess.Popen(
                [_command("rabbitmq-server")], env=self._env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

        def is_decided() -> bool:
            return "completed with" in self._said() or process.poll() is not None

        eventually(is_decided, "the broker has started", within=_START_S)
        assert process.poll() is None, self._said()

    def _said(self) -> str:
        return (self._folder / "out").read_text(errors="replace")

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError, FileNotFoundError):
            # The shell that started it would not pass it on.
            os.kill(int((self._folder / "pid").read_text()), number)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_START_S)
        kill_group(self._process)
        self._process = None


def _command(name: str) -> str:
    found = _DEBIANS / name
    return str(found) if found.exists() else shutil.which(name) or ""
