"""What the README says of other packages is so: each claim is tried on the package itself.

They come with the `docs` extra, in the versions that the README names.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redlock import Redlock, current_lease, singleton_task
from celery_redlock.keys import key_rule
from celery_redlock.testing import Server, Servers
from tests.conftest import StartServers
from tests.support.root import ROOT
from tools.docs.markdown import tables

# Their own code warns, too.
pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Package:
    """One package, set up as its own documentation says, with one task `pay(x)`.

    Attributes:
        name: As it is installed.
        pay: The task.
        locks: Which keys on the lock server are its locks.
        ends: Called when a run of `pay(1)` has ended: the package's own hook.
        broker: Where the messages are.
        server: Where the locks are.
    """

    name: str
    pay: Any
    locks: str
    ends: Callable[[], object]
    broker: Server
    server: Server
    client: redis.Redis = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.server.client()

    def publish(self, *args: object, **kwargs: object) -> bool:
        """Publish the task; return whether it is a message now."""
        before = self._messages()
        try:
            self.pay.apply_async(args, kwargs)
        except Exception as error:
            if type(error).__name__ not in ("AlreadyQueued", "AlreadyQueuedError"):
                raise
        return self._messages() > before

    def _messages(self) -> int:
        with self.broker.client() as client:
            count: Any = client.llen("celery")
            return int(count)

    def lock_names(self) -> list[bytes]:
        return list(self.client.scan_iter(self.locks))


def celery_once(app: Celery, broker: Server, server: Server) -> Package:
    # It keeps the first server that the process gave it.
    vars(import_module("celery_once.backends.redis"))["redis"] = None
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": server.url}}

    @app.task(shared=False, base=import_module("celery_once").QueueOnce)
    def pay(x: object) -> None: ...

    def ends() -> None:
        pay.after_return("SUCCESS", None, "id", [1], {}, None)

    return Package("celery-once", pay, "qo_*", ends, broker, server)


def celery_singleton(app: Celery, broker: Server, server: Server) -> Package:
    vars(import_module("celery_singleton.backends"))["_backend"] = None  # likewise
    app.conf.singleton_backend_url = server.url

    @app.task(shared=False, base=import_module("celery_singleton").Singleton)
    def pay(x: object) -> None: ...

    def ends() -> None:
        pay.on_success(None, "id", [1], {})

    return Package("celery-singleton", pay, "SINGLETONLOCK_*", ends, broker, server)


def celery_heimdall(app: Celery, broker: Server, server: Server) -> Package:
    app.conf.update(result_backend=server.url)

    @app.task(
        shared=False, base=import_module("celery_heimdall").HeimdallTask, heimdall={"unique": True}
    )
    def pay(x: object) -> None: ...

    def ends() -> None:
        pay.after_return("SUCCESS", None, "id", [1], {}, None)

    return Package("celery-heimdall", pay, "h-lock:*", ends, broker, server)


PACKAGES = {
    "celery-once": celery_once,
    "celery-singleton": celery_singleton,
    "celery-heimdall": celery_heimdall,
}


@pytest.fixture(params=list(PACKAGES))
def package(request: pytest.FixtureRequest, servers: StartServers) -> Iterator[Package]:
    pytest.importorskip(request.param.replace("-", "_"), reason="pip install '.[docs]'")
    broker, server = servers(2)
    app = Celery(uuid.uuid4().hex, broker=broker.url, set_as_current=False)
    package = PACKAGES[request.param](app, broker, server)
    yield package
    package.client.close()
    app.close()


def comparison() -> list[dict[str, str]]:
    """Return the README's table: its rows, a cell by its package's name and version."""
    [found] = [table for table in tables(ROOT / "README.md") if len(table[0]) == 5]
    return found


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def test_the_versions_are_those_that_the_readme_names(package: Package) -> None:
    assert f"{package.name} {metadata.version(package.name)}" in comparison()[0]


def enters_twice(package: Package) -> str:
    assert package.publish(1)
    return yes_or_no(package.publish(1))


def lock_stays(package: Package) -> str:
    package.publish(1)
    [lock] = package.lock_names()
    seconds: Any = package.client.ttl(lock)
    return "for ever" if seconds == -1 else f"{seconds / 3600:.0f} h"


def frees_another(package: Package) -> str:
    package.publish(1)
    [lock] = package.lock_names()
    package.client.set(lock, "somebody else's by now")
    package.ends()
    return yes_or_no(not package.client.exists(lock))


def shares_with_text(package: Package) -> str:
    package.publish(1)
    return yes_or_no(not package.publish("1"))


def shares_with_named(package: Package) -> str:
    package.publish(1)
    return yes_or_no(not package.publish(x=1))


def goes_on_without_server(package: Package) -> str:
    package.server.stop()
    try:
        return yes_or_no(package.publish(1))
    except redis.ConnectionError:
        return "no"


TRIALS: dict[str, Callable[[Package], str]] = {
    "a duplicate enters the queue": enters_twice,
    "the lock of a run that vanished stays": lock_stays,
    "a run that outlasted its lock releases the next holder's": frees_another,
    '`f(1)` and `f("1")` share a lock': shares_with_text,
    "`f(1)` and `f(x=1)` share a lock": shares_with_named,
    "work goes on while one lock server is down": goes_on_without_server,
}


@pytest.mark.parametrize("row", range(len(comparison())))
def test_what_the_table_says_of_another_package(package: Package, row: int) -> None:
    cells = comparison()[row]
    [said] = [cell for name, cell in cells.items() if name.startswith(f"{package.name} ")]
    assert said == TRIALS[cells[""]](package)


def nodes_with(nodes: Servers, key: str) -> list[str]:
    found = []
    for node in nodes:
        with node.client() as client:
            if client.exists(key):
                found.append(node.url)
    return found


def test_what_the_table_says_of_this_package(servers: StartServers) -> None:
    nodes = servers(3)
    [broker] = servers(1)
    app = Celery(uuid.uuid4().hex, broker=broker.url, set_as_current=False)
    app.conf.update(
        redlock_nodes=nodes.urls, redlock_restart_guard=False, redlock_node_timeout=20.0
    )

    @singleton_task(app=app, lock_lifetime="while_executing")
    def pay(x: object) -> float:
        lease = current_lease()
        assert lease is not None
        return lease.ttl_ms / 1000

    ours = Package("celery-redlock", pay, "*}", lambda: None, broker, nodes[0])
    assert ours.publish(1)
    says = dict[str, str]()
    says["a duplicate enters the queue"] = yes_or_no(ours.publish(1))
    says["the lock of a run that vanished stays"] = f"{pay.apply((1,)).get():.0f} s"

    # Patient, since the machine may be slow.
    mine, others = (Redlock(nodes.urls, restart_guard=False, node_timeout=20.0) for _ in range(2))
    lease = mine.acquire("job", ttl=3)
    with others.lock("job", wait=60):
        mine.release(lease)
        # On one of the three, what is mine may end last; there the others have nothing.
        is_freed = len(nodes_with(nodes, "redlock:{job}")) < 2
    says["a run that outlasted its lock releases the next holder's"] = yes_or_no(is_freed)

    rule = key_rule("pay", pay.run, None)
    one, text, named = rule.key_for([1], {}), rule.key_for(["1"], {}), rule.key_for([], {"x": 1})
    says['`f(1)` and `f("1")` share a lock'] = yes_or_no(one == text)
    says["`f(1)` and `f(x=1)` share a lock"] = yes_or_no(one == named)

    nodes[2].stop()
    goes_on = pay.apply((1,)).successful()
    says["work goes on while one lock server is down"] = f"{yes_or_no(goes_on)}, of 3"

    assert {row[""]: row["celery-redlock"] for row in comparison()} == says
    for redlock in (mine, others):
        redlock.close()
    ours.client.close()
    app.close()
