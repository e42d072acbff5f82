"""`celery-redlock list` on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from celery_redlock.redlock.lease import new_owner
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.processes.ran import Ran, Run
from tests.support.root import ROOT

MANY = 20_000
FILL = """
for number = 1, tonumber(ARGV[1]) do
  local name = 'redlock:{bank.sync:' .. number .. '}'
  redis.call('SET', name, ARGV[2] .. number .. '@worker', 'PX', 3600000)
  redis.call('SET', name .. ':floor', '1763800000000000', 'PX', 3600000)
end
"""


def listed(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.output.splitlines()]


def test_locks_of_all_kinds_are_listed(five: Servers, new_redlock: NewRedlock, run: Run) -> None:
    redlock = new_redlock(five.urls)
    lease = redlock.acquire("bank.sync:42", 30, label="task-1")
    redlock.reserve("bank.report:may", 60, label="task-2")
    redlock.reserve("bank.sync:42%next", 60, label="task-3")
    redlock.reserve("%beat:bank@0123:nightly:now", 60, label="task-4")
    redlock.mark_done("bank.sync:41", "task-5/0/abc")
    shown = {lock["key"]: lock for lock in listed(run(five.urls, "list", "--json"))}
    assert {key: (lock["kind"], lock["task_id"]) for key, lock in shown.items()} == {
        "bank.sync:42": ("held", "task-1"),
        "bank.report:may": ("reserved", "task-2"),
        "bank.sync:42%next": ("pending", "task-3"),
    }
    held = shown["bank.sync:42"]
    assert (held["task"], held["votes"], held["nodes"]) == ("bank.sync", 5, 5)
    assert held["token"] == lease.token
    assert 0 < held["remaining"] <= 30
    assert 0 <= held["age"] < 60
    more = listed(run(five.urls, "list", "--json", "--kind", "published", "--kind", "done"))
    assert [(lock["kind"], lock["key"], lock["task_id"]) for lock in more] == [
        ("published", "%beat:bank@0123:nightly:now", "task-4"),
        ("done", "bank.sync:41", "task-5"),
    ]


def test_only_what_matches_is_listed(five: Servers, new_redlock: NewRedlock, run: Run) -> None:
    redlock = new_redlock(five.urls, key_prefix="a*[b]?")
    other = new_redlock(five.urls, key_prefix="axb")
    for key in ("bank.sync:1", "bank.sync:2", "bank.sync_all:1"):
        redlock.acquire(key, 30)
    other.acquire("bank.sync:3", 30)

    def keys(*words: str) -> set[str]:
        ran = run(five.urls, "list", "--json", *words, options=["--key-prefix", "a*[b]?"])
        return {lock["key"] for lock in listed(ran)}

    assert keys() == {"bank.sync:1", "bank.sync:2", "bank.sync_all:1"}
    assert keys("--match", "*:1") == {"bank.sync:1", "bank.sync_all:1"}
    assert keys("--task", "bank.sync") == {"bank.sync:1", "bank.sync:2"}


@pytest.mark.long
def test_many_locks_cost_little(five: Servers) -> None:
    owner = new_owner("task-").partition("@")[0]
    for node in five:
        with node.client() as client:
            client.eval(FILL, 0, MANY, owner)
            client.config_set("slowlog-log-slower-than", 10_000)
            client.slowlog_reset()
            client.config_resetstat()
    nodes = [word for url in five.urls for word in ("--node", url)]
    words = [*nodes, "--node-timeout", "20", "list", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.list_measured", *words],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    shown = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len({lock["key"] for lock in shown}) == MANY
    assert {lock["votes"] for lock in shown} == {5}
    wall, cpu, mib = map(float, ran.stderr.split())
    # It keeps the keys, but not the locks.
    assert 0 < mib < 50
    slow = 0
    for node in five:
        with node.client() as client:
            stats: Any = client.info("commandstats")
            assert "cmdstat_keys" not in stats
            # In steps: each examines a bounded number of keys, whatever the machine's speed.
            for command in ("scan", "getrange"):
                assert stats[f"cmdstat_{command}"]["calls"] >= MANY / 500
            slow += len(client.slowlog_get(1000))
    print(  # noqa: T201 - it is for who looks at the tests
        f"{MANY} locks on 5 nodes: {wall:.2f} s, {cpu:.2f} s on the CPU, {mib:.1f} MiB, "
        f"and {slow} commands that took a node more than 10 ms"
    )
