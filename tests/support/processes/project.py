"""A Celery project for tests: an app module with its broker, lock nodes and workers.

project = Project("tests.integration.apps.locked", folder, broker.url, broker.url, nodes)
project.start_worker(pool="threads")
result = project.tasks.skipping.delay("key", "gate")
run = project.run_of(result.id)
project.open("gate")
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import celery._state
import redis
from celery import Celery
from kombu import Connection, pools

from celery_redlock.config import app_lock
from celery_redlock.redlock.lease import task_of
from celery_redlock.testing import Servers
from tests.support.asked import asked
from tests.support.eventually import eventually
from tests.support.judges.queues import Queues

from .inside import FOLDER_VARIABLE, Note, Notes, gate_path, set_up
from .workers import Worker, started

if TYPE_CHECKING:
    from typing_extensions import Self

_AGREE_WITHIN_S = 10.0
_state: Any = celery._state  # no stub knows what is in there


@dataclass(frozen=True, slots=True)
class Hold:
    """A lock key that stands on one node."""

    node: str
    key: str
    task_id: str | None
    remaining: float


class Project(Queues):
    """An app module, loaded anew with a configuration of its own, and the workers that run it.

    Args:
        module: The app's module. It begins with ``inside = Inside(__name__); app = inside.app``.
        folder: An empty one.
        broker: URL of the broker.
        results: URL of the result backend.
        nodes: The lock nodes.
        conf: More of Celery's configuration, plain JSON.

    Attributes:
        tasks: The loaded module.
        app: Its app, to publish with.
        queue: The name of its queue, different each time.
    """

    def __init__(
        self, module: str, folder: Path, broker: str, results: str, nodes: Servers, **conf: Any
    ) -> None:
        self.module = module
        self.folder = folder
        self.nodes = nodes
        self.queue = f"queue-{secrets.token_hex(4)}"
        self.workers: list[Worker] = []
        self._notes = Notes(folder)
        self.conf = {
            "broker_url": broker,
            "result_backend": results,
            "task_default_queue": self.queue,
            # On RabbitMQ, which projects share, other workers would obey its commands, too.
            "control_exchange": self.queue,
            "broker_connection_retry_on_startup": True,
            "redlock_nodes": nodes.urls,
            # They were started a moment ago, and on a busy machine they may be slow.
            "redlock_restart_guard": False,
            "redlock_node_timeout": 2.0,
        } | conf
        set_up(folder, self.conf)
        self._stack = ExitStack()
        self._stack.enter_context(celery_to_itself())
        self.tasks = self._load()
        self.app: Celery = self.tasks.app

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, and leave nothing of the app in this process."""
        self.ask_workers_to_end()
        for worker in self.workers:
            worker.stop()
        started[:] = [worker for worker in started if worker not in self.workers]
        if redlock := app_lock._redlocks.pop(self.app, None):
            redlock.close()
        self._delete_queue()
        disconnect(self.app)
        self.app.close()
        self._stack.close()
        sys.modules.pop(self.module, None)

    # ---- workers

    def ask_workers_to_end(self) -> None:
        """Begin a warm shutdown of all workers; don't wait."""
        for worker in self.workers:
            if worker.is_running:
                worker.resume()  # a stopped process sees no SIGTERM
                worker.ask_to_end()

    def leave_rabbitmq(self, url: str) -> None:
        """End all workers, and delete the project's queue from the broker."""
        self.ask_workers_to_end()
        for worker in self.workers:
            worker.stop()
        with Connection(url) as connection:
            channel: Any = connection.default_channel
            channel.queue_delete(self.queue)

    def start_worker(self, **options: Any) -> Worker:
        """Start one more worker, and return when it takes tasks; `options` are `Worker`'s."""
        worker = self.new_worker(**options)
        worker.start()
        worker.wait_until_ready()
        return worker

    def start_workers(self, count: int, **options: Any) -> list[Worker]:
        """Start more workers at the same time, and return when all take tasks."""
        workers = [self.new_worker(**options) for _ in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()
        return workers

    def new_worker(self, **options: Any) -> Worker:
        """Return one more worker, not started yet; it is ended with the project."""
        options = {"name": f"worker-{len(self.workers) + 1}"} | options
        worker = Worker(self.module, self.folder, **options)
        self.workers.append(worker)
        return worker

    # ---- what tasks do

    def open(self, gate: str) -> None:
        """Let tasks go on that wait at `gate`."""
        gate_path(self.folder, gate).touch()

    def notes(self, event: str | None = None, **more: Any) -> list[Note]:
        """Return what the tasks noted, in order.

        Args:
            event: Only this event. None: all.
            more: Only notes that say this: `task_id`, `pid`, or what the task added.
        """
        return [
            note
            for note in self._notes
            if event in (None, note.event)
            and all(note.more.get(k, getattr(note, k, None)) == v for k, v in more.items())
        ]

    def wait_for_note(self, event: str, *, count: int = 1, **more: Any) -> Note:
        """Return the last of `count` such notes as soon as they are there."""
        eventually(
            lambda: len(self.notes(event, **more)) >= count,
            f"{count} x {event} {more}; last noted: {self.notes()[-5:]}",
        )
        return self.notes(event, **more)[count - 1]

    def run_of(self, task_id: str) -> Note:
        """Return where `task_id` runs (`pid`: the pool's child) as soon as its body has begun."""
        return self.wait_for_note("begin", task_id=task_id)

    def tokens(self, **more: Any) -> list[int]:
        """Return the fencing tokens of the runs that noted `more`, in the order they began."""
        return [note.token for note in self.notes("begin", **more) if note.token is not None]

    def most_at_once(self, **more: Any) -> int:
        """Return how many runs were under way at the same time, of those that noted `more`."""
        running = most = 0
        for note in self.notes(**more):
            running += {"begin": 1, "end": -1}.get(note.event, 0)
            most = max(most, running)
        return most

    # ---- locks

    def holds(self, key: str = "") -> list[Hold]:
        """Return the locks that stand on the nodes which can be asked, of keys with `key` in."""
        found = []
        for node in self.nodes:
            client = asked(node)
            with suppress(redis.RedisError):
                for name in client.scan_iter(f"*{key}*}}"):  # a floor or mark goes on after it
                    holder, remaining = client.get(name), client.pttl(name)
                    if isinstance(holder, bytes):
                        task_id = task_of(holder.decode())
                        found.append(Hold(node.url, name.decode(), task_id, remaining / 1000))
        return found

    def votes(self, task_id: str) -> int:
        """Return how many locks on how many nodes the task `task_id` holds, all together."""
        return sum(hold.task_id == task_id for hold in self.holds())

    def is_held(self, key: str) -> bool:
        """Tell whether a majority holds `key`, once all nodes agree: nobody waits for more of them.

        They may never agree. A node that was slow may keep a reservation that was released before
        it came there.
        """
        with suppress(AssertionError):
            eventually(lambda: len(self.holds(key)) in (0, len(self.nodes)), within=_AGREE_WITHIN_S)
        return len(self.holds(key)) > len(self.nodes) / 2

    def held_for(self, key: str) -> float:
        """Return for how many seconds `key` is still held, on every node."""
        assert self.is_held(key)
        return min(hold.remaining for hold in self.holds(key))

    def _load(self) -> ModuleType:
        sys.modules.pop(self.module, None)
        with _environment(FOLDER_VARIABLE, str(self.folder)):
            return importlib.import_module(self.module)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def disconnect(app: Celery) -> None:
    """Close what `app` is connected to: its broker, and its result backend if it is Redis."""
    backend: Any = app.backend
    # A result that is garbage later on would connect to a server that is gone by then.
    backend.remove_pending_result = lambda result: None
    if hasattr(backend, "result_consumer"):
        backend.result_consumer.stop()
        backend.client.connection_pool.disconnect()
    pool: Any = app.pool
    pool.force_close_all()
    # The next broker may get the same port, and then would be given this pool, closed as it is.
    broker = app.connection_for_write()
    for group in (pools.connections, pools.producers):
        with suppress(KeyError):
            del group[broker]


@contextmanager
def celery_to_itself() -> Iterator[None]:
    """Let the apps that are made inside be the only ones, and leave nothing of them behind.

    A shared task is for every app there is and every app to come, whoever made it: those of other
    tests' modules, too.
    """
    apps, finalizers = set(_state._apps), set(_state._on_app_finalizers)
    default_app, current_app = _state.default_app, _state._tls.current_app
    _state._apps.clear()
    _state._on_app_finalizers.clear()
    _state._on_app_finalizers.update(
        one for one in finalizers if one.__module__ == "celery.app.builtins"
    )
    try:
        yield
    finally:
        _state._apps.clear()
        _state._apps.update(apps)
        _state._on_app_finalizers.clear()
        _state._on_app_finalizers.update(finalizers)
        _state.default_app, _state._tls.current_app = default_app, current_app
