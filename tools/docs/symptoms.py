"""The page for those on call, run again: `python -m tools.docs.symptoms` records.

Its ```` ```console ```` blocks are run in order, in a project with a worker and three nodes. A
comment before a block names the situation that is set up for it: a method of `Stage`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery_redlock.testing import Server, Servers, start_servers
from tests.support.eventually import eventually
from tests.support.root import ROOT
from tools.docs import commands

PAGE = ROOT / "docs" / "how-to" / "on-call.md"
_MODULE = """
import time
from pathlib import Path

from celery import Celery
from celery_redlock import singleton_task

app = Celery("bank", broker={broker!r}, backend={broker!r})
app.conf.redlock_nodes = {nodes!r}
app.conf.redlock_node_timeout = 2.0
app.conf.redlock_max_ttl = app.conf.redlock_ttl = 300
app.conf.redlock_restart_guard = Path("guard").exists()


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
_IDS = {
    "holder": "5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51",
    "duplicate": "c7a90e52-33a8-4c0b-8a3e-7e1f8f0a6b1d",
    "queued": "0d9b8f6e-8a7c-4f0e-b1f5-0c9d7a1e2b3c",
    "running": "2f4de2a6-5f0e-4a5c-9f53-8f3b7c1f6e90",
    "waiting": "9e1c7b34-0b7d-4d55-8a6a-3d2f9b8c4e17",
}
_WORKER = (
    "worker --pool threads --concurrency 4 --loglevel INFO --logfile worker.log "
    "--without-mingle --without-gossip --without-heartbeat"
)


@dataclass
class Stage:
    """The project, and what its situations are made with."""

    folder: Path
    nodes: Servers

    def publish(self, task: str, argument: object, *names: str, **options: object) -> None:
        """Publish a task for each named id; each but the first once a quorum has the lock."""
        key = f"redlock:{{bank.{task}:{argument}}}"
        script = _PUBLISH.format(
            task=task, argument=argument, ids=[_IDS[name] for name in names], options=options,
            nodes=self.nodes.urls, key=key,
        )  # fmt: skip
        words = [sys.executable, "-c", script]
        subprocess.run(words, cwd=self.folder, env=commands.environment(), check=True)

    def until_logged(self, text: str) -> None:
        """Wait until the worker has logged this."""
        log = self.folder / "worker.log"
        eventually(lambda: text in log.read_text(encoding="utf-8"), within=300)

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


_BLOCK = re.compile(r"(?:<!-- situation: (\w+) -->\n)?```console\n(.*?)```", re.DOTALL)


@contextmanager
def stage() -> Iterator[Stage]:
    """Make a project whose worker runs."""
    persistent = ("--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(Server())
        nodes = stack.enter_context(start_servers(3, *persistent))
        module = _MODULE.format(broker=broker.url, nodes=nodes.urls)
        (folder / "bank.py").write_text(module, encoding="utf-8")
        celery = [sys.executable, "-m", "celery", "-A", "bank", *_WORKER.split()]
        worker = subprocess.Popen(
            celery, cwd=folder, env=commands.environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield Stage(folder, nodes)
        finally:
            worker.kill()
            worker.wait()


def shown_and_run(stage: Stage) -> Iterator[tuple[str, str]]:
    """Yield each block of the page, and what it would show now."""
    for situation, block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if situation:
            getattr(stage, situation)()
        yield block, commands.run(block, stage.folder)


def main() -> None:
    """Write what the commands print now to the page."""
    with stage() as made:
        now = iter([shown for _, shown in shown_and_run(made)])

    def renewed(found: re.Match[str]) -> str:
        return found[0].replace(found[2], next(now))

    PAGE.write_text(_BLOCK.sub(renewed, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
