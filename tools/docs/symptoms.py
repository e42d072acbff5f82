"""The page for those on call, run again: `python -m tools.docs.symptoms` records.

Its ```` ```console ```` blocks are run in order, in a project with a worker and three nodes. A
comment before a block names the situation that is set up for it and for those after it: a method
of the stage where they are run, with Redis or with RabbitMQ as broker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from celery_redlock.testing import Server, Servers, start_servers
from tests.support.eventually import eventually
from tests.support.processes.brokers import RabbitMQ
from tests.support.root import ROOT
from tools.docs import commands

PAGE = ROOT / "docs" / "how-to" / "on-call.md"
_MODULE = """
import time
from datetime import datetime, timedelta
from pathlib import Path

from celery import Celery
from celery.schedules import crontab
from celery_redlock import singleton_task

app = Celery("bank", broker={broker!r}, backend={backend!r})
app.conf.redlock_nodes = {nodes!r}
app.conf.redlock_node_timeout = 2.0
app.conf.redlock_ttl = 300
# The guard lasts as long: no slow machine sits it out.
app.conf.redlock_max_ttl = 3600
app.conf.redlock_restart_guard = Path("guard").exists()
app.conf.beat_scheduler = "redlock"


def daily(ago):
    at = datetime.fromisoformat({began!r}) - ago
    return {{"task": "bank.report", "args": ["june"], "schedule": crontab(at.minute, at.hour)}}


app.conf.beat_schedule = {{
    "nightly": daily(timedelta(hours=3)),
    "close-day": daily(timedelta(minutes=5)),
}}


def wait_for_gate():
    while not Path("gate").exists():
        time.sleep(0.01)


@singleton_task(app=app, lock_key="{{account_id}}")
def sync(account_id):
    wait_for_gate()


@singleton_task(app=app, lock_key="{{shop_id}}", lock_on_conflict="coalesce")
def refresh(shop_id):
    wait_for_gate()


@singleton_task(app=app, lock_key="{{month}}", lock_lifetime="until_executed")
def report(month):
    pass
"""
_PUBLISH = """
import time

import bank
import redis

nodes = [redis.Redis.from_url(url) for url in {nodes!r}]
for number, task_id in enumerate({ids!r}):
    while number and sum(node.exists({key!r}) for node in nodes) < 2:
        time.sleep(0.1)
    bank.{task}.apply_async(({argument!r},), task_id=task_id, **{options!r})
"""
_BEAT_OF_YESTERDAY = """
from datetime import datetime, timedelta, timezone

from bank import app
from celery.beat import PersistentScheduler

beat = PersistentScheduler(app, schedule_filename="celerybeat-schedule")
for entry in beat.schedule.values():
    entry.last_run_at = datetime.now(timezone.utc) - timedelta(days=1)
beat.close()
"""
_IDS = {
    "holder": "5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51",
    "duplicate": "c7a90e52-33a8-4c0b-8a3e-7e1f8f0a6b1d",
    "queued": "0d9b8f6e-8a7c-4f0e-b1f5-0c9d7a1e2b3c",
    "running": "2f4de2a6-5f0e-4a5c-9f53-8f3b7c1f6e90",
    "waiting": "9e1c7b34-0b7d-4d55-8a6a-3d2f9b8c4e17",
    "hanging": "4b7e2d90-6c1f-4e8a-b2d5-7f0a9c3e5d16",
    "unwanted": "d3a86b52-9e4c-4f17-8b60-1c5f7e2a9d48",
    "lost": "6e0f9c71-2b5d-4a83-9f4e-8d1b3c7a5e02",
}
_WORKER = (
    "worker --concurrency 4 --loglevel INFO --logfile worker.log "
    "--without-mingle --without-gossip --without-heartbeat"
)
_BEAT = "beat --loglevel INFO --logfile beat.log"


@dataclass
class Stage:
    """The project, and what its situations are made with."""

    folder: Path
    nodes: Servers
    worker: subprocess.Popen[bytes]

    def publish(self, task: str, argument: object, *names: str, **options: object) -> None:
        """Publish a task for each named id; each but the first once a quorum has the lock."""
        key = f"redlock:{{bank.{task}:{argument}}}"
        script = _PUBLISH.format(
            task=task, argument=argument, ids=[_IDS[name] for name in names], options=options,
            nodes=self.nodes.urls, key=key,
        )  # fmt: skip
        self.python(script)

    def python(self, script: str) -> None:
        """Run a script in the project."""
        words = [sys.executable, "-c", script]
        subprocess.run(words, cwd=self.folder, env=commands.environment(), check=True)

    def until_logged(self, text: str, by: str = "worker") -> None:
        """Wait until the worker has logged this, or beat."""
        log = self.folder / f"{by}.log"
        eventually(lambda: log.exists() and text in log.read_text(encoding="utf-8"), within=300)

    def until_stored(self, pattern: str) -> None:
        """Wait until all nodes have a key like this."""
        with ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for node in self.nodes]
            eventually(lambda: all(one.keys(pattern) for one in clients), pattern, within=300)

    def run(self, argument: object, name: str) -> None:
        """Publish a task, and wait until it runs."""
        self.publish("sync", argument, name)
        self.until_stored(f"redlock:{{bank.sync:{argument}}}")

    def end(self) -> None:
        """Kill the worker with its pool."""
        os.killpg(self.worker.pid, signal.SIGKILL)
        self.worker.wait()


class AtRedis(Stage):
    """Situations with Redis as broker."""

    def skip_a_duplicate(self) -> None:
        self.publish("sync", 42, "holder", "duplicate")
        self.until_logged("outcome=skip")

    def queue_a_message(self) -> None:
        self.publish("report", "may", "queued", queue="reports")

    def let_one_wait(self) -> None:
        self.publish("refresh", "books", "running", "waiting")
        self.until_logged("outcome=coalesce")

    def stop_two_nodes(self) -> None:
        for node in self.nodes[1:]:
            node.kill()

    def restart_them(self) -> None:
        for node in self.nodes[1:]:
            node.start()
        (self.folder / "guard").touch()

    def take_a_right(self) -> None:
        (self.folder / "guard").unlink()
        with self.nodes[0].client() as client:
            client.execute_command("ACL SETUSER default -set")

    def fill_a_node(self) -> None:
        with self.nodes[0].client() as client:
            client.execute_command("ACL SETUSER default +set")
            client.config_set("maxmemory", "1mb")

    def set_a_password(self) -> None:
        with self.nodes[0].client() as client:
            client.config_set("maxmemory", 0)
        with self.nodes[1].client() as client:
            client.config_set("requirepass", "new")

    def miss_a_tick(self) -> None:
        self.nodes[1].restart()  # which forgets the password
        self.python(_BEAT_OF_YESTERDAY)
        beat = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "bank", *_BEAT.split()],
            cwd=self.folder, env=commands.environment(), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            self.until_stored("*:nightly:*:missed}")
            self.until_logged("tick published entry=close-day", by="beat")
        finally:
            beat.kill()
            beat.wait()

    def let_one_hang(self) -> None:
        self.run(44, "hanging")

    def let_one_be_unwanted(self) -> None:
        self.run(45, "unwanted")

    def kill_the_worker(self) -> None:
        self.run(46, "lost")
        self.end()


class AtRabbitMQ(Stage):
    """Situations with RabbitMQ as broker."""

    def queue_a_message_there(self) -> None:
        self.publish("report", "may", "queued", queue="reports")


_BLOCK = re.compile(r"(?:<!-- situation: (\w+) -->\n)?```console\n(.*?)```", re.DOTALL)


@contextmanager
def stage(kind: type[Stage]) -> Iterator[Stage]:
    """Make a project whose worker runs."""
    persistent = ("--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker: RabbitMQ | Server = RabbitMQ() if kind is AtRabbitMQ else Server()
        stack.enter_context(broker)
        backend = stack.enter_context(Server())
        nodes = stack.enter_context(start_servers(3, *persistent))
        began = datetime.now(timezone.utc).isoformat()
        urls = {"broker": broker.url, "backend": backend.url, "nodes": nodes.urls}
        module = _MODULE.format(began=began, **urls)
        (folder / "bank.py").write_text(module, encoding="utf-8")
        celery = [sys.executable, "-m", "celery", "-A", "bank", *_WORKER.split()]
        worker = subprocess.Popen(
            celery, cwd=folder, env=commands.environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        made = kind(folder, nodes, worker)
        try:
            yield made
        finally:
            if worker.returncode is None:
                made.end()


def shown_and_run(stage: Stage) -> Iterator[tuple[str, str]]:
    """Yield each block of the page that belongs to this stage, and what it would show now."""
    is_here = False
    for situation, block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if situation:
            is_here = hasattr(stage, situation)
            assert is_here or hasattr(AtRedis, situation) or hasattr(AtRabbitMQ, situation)
            if is_here:
                getattr(stage, situation)()
        if is_here:
            yield block, commands.run(block, stage.folder)


def main() -> None:
    """Write what the commands print now to the page."""
    now: dict[str, str] = {}
    for kind in (AtRedis, AtRabbitMQ):
        with stage(kind) as made:
            now.update(shown_and_run(made))

    def renewed(found: re.Match[str]) -> str:
        return found[0].replace(found[2], now[found[2]])

    PAGE.write_text(_BLOCK.sub(renewed, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
