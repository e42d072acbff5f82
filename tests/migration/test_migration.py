"""A small app moved from each other package: before, with both locks, and after."""

from __future__ import annotations

import difflib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import LockError

from celery_redlock.redlock.errors import LockHeld
from celery_redlock.testing import MemoryServers, Server, Servers, start_servers
from tests.conftest import NewRedlock
from tests.support.root import ROOT
from tools.docs.markdown import blocks

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "how-to" / "migrate.md"
PACKAGES = ("once", "singleton", "heimdall")


class Projects:
    """The projects of the trials, on one broker and the same nodes."""

    def __init__(self, broker: Server, nodes: list[str]) -> None:
        self.broker = broker
        self.env = {"BANK_BROKER": broker.url, "BANK_LOCK_NODES": ",".join(nodes)}

    def run(self, module: str, *words: str) -> list[str]:
        """Return what a project prints."""
        ran = subprocess.run(
            [sys.executable, "run.py", module, *words], cwd=HERE, env=os.environ | self.env,
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    def other_locks(self) -> list[str]:
        """Return the keys of the other packages that stand."""
        with self.broker.client(decode_responses=True) as client:
            return [
                key
                for prefix in ("qo_*", "SINGLETONLOCK_*", "h-lock:*")
                for key in client.scan_iter(prefix)
            ]


@pytest.fixture
def projects(_has_server: None) -> Iterator[Projects]:
    with Server() as broker, start_servers(3) as nodes:
        yield Projects(broker, nodes.urls)


@pytest.mark.neighbours
@pytest.mark.parametrize("package", PACKAGES)
def test_a_moved_task_does_what_it_did(projects: Projects, package: str) -> None:
    calls = ("delay", "1", "delay", "1", "delay", "2", "work", "delay", "1", "work")
    first = ["published", "duplicate", "published", "SUCCESS SUCCESS"]
    for step in ("before", "after"):
        assert projects.run(f"{package}_{step}", *calls) == [*first, "published", "SUCCESS"]


@pytest.mark.neighbours
@pytest.mark.parametrize("package", PACKAGES)
def test_no_call_gets_past_both_locks_in_a_rollout(projects: Projects, package: str) -> None:
    before, both, after = (f"{package}_{step}" for step in ("before", "both", "after"))
    # 1. Workers with both locks, old producers.
    assert projects.run(before, "delay", "1") == ["published"]
    assert projects.run(both, "delay", "1") == ["duplicate"]
    assert projects.run(both, "work") == ["SUCCESS"]
    assert projects.other_locks() == []
    # 2. Producers with both locks, beside old ones. 3. Producers without the old lock.
    assert projects.run(both, "delay", "2") == ["published"]
    assert projects.run(before, "delay", "2") == ["duplicate"]
    assert projects.run(after, "delay", "2") == ["duplicate"]
    assert projects.run(both, "work") == ["SUCCESS"]
    assert projects.other_locks() == []
    assert projects.run(after, "delay", "2") == ["published"]
    assert projects.run(both, "work") == ["SUCCESS"]
    # 4. Workers without the old lock.
    assert projects.run(after, "delay", "2", "work") == ["published", "SUCCESS"]


def test_a_report_is_written_under_one_lock_at_a_time(
    five: Servers, redlock_nodes: MemoryServers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(redlock_nodes.urls)
    with redis.Redis.from_url(five[0].url) as client:
        for name, lock, held, holding in (
            ("before", client, LockError, client.lock("report:monday", timeout=600)),
            ("after", redlock, LockHeld, redlock.lock("report:monday")),
        ):
            write_report = _module(f"redis_lock_{name}").write_report
            tokens: list[object] = []
            write_report(lock, "monday", tokens.append)
            assert len(tokens) == 1
            with holding, pytest.raises(held):
                write_report(_impatient(lock), "monday", tokens.append)


RECIPE = """
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}})
from django.core.cache import cache
from celery_redlock.testing import Locks
import recipe_before, recipe_after
task = recipe_after.import_feed
assert recipe_before.import_feed("a") == task.apply(("a",)).get() == "imported a"
cache.add("import-a", "locked")
assert recipe_before.import_feed("a") == "being imported by another worker"
with Locks(recipe_after.app) as locks, locks.hold(task, "a"):
    locks.assert_duplicate(task.apply(("a",)))
"""


def test_a_feed_is_imported_once_at_a_time(five: Servers, redlock_nodes: MemoryServers) -> None:
    env = {"BANK_BROKER": five[0].url, "BANK_LOCK_NODES": ",".join(redlock_nodes.urls)}
    ran = subprocess.run(
        [sys.executable, "-c", RECIPE], cwd=HERE, env=os.environ | env, capture_output=True,
        text=True, timeout=110, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def _impatient(lock: Any) -> Any:
    """Return the same lock, whose waits end at once."""

    class Impatient:
        def lock(self, name: str, **options: Any) -> Any:
            soon = {option: 0.01 for option in ("wait", "blocking_timeout") if option in options}
            return lock.lock(name, **options | soon)

    return Impatient()


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*PACKAGES, "recipe", "redis_lock"])
def test_the_page_shows_the_difference(name: str) -> None:
    before, after = (
        (HERE / f"{name}_{step}.py").read_text().splitlines() for step in ("before", "after")
    )
    # Without the names of the files, and with all lines.
    difference = [line.rstrip() for line in difflib.unified_diff(before, after, lineterm="", n=99)]
    shown = [block.code.splitlines() for block in blocks(PAGE) if block.language == "diff"]
    assert difference[3:] in shown


def test_the_page_shows_a_task_with_both_locks() -> None:
    [block] = [block for block in blocks(PAGE) if block.title == "once_both.py"]
    assert block.code == (HERE / "once_both.py").read_text()
