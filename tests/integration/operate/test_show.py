"""`celery redlock show` on real servers."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.processes.commands import run_with
from tests.support.processes.ran import Run


def test_each_node_s_view_is_shown_side_by_side(
    five: Servers, new_redlock: NewRedlock, run: Run
) -> None:
    redlock = new_redlock(five.urls)
    lease = redlock.acquire("bank.sync:42", 30, label="task-1")
    redlock.reserve("bank.sync:42%next", 60, label="task-2")
    redlock.mark_done("bank.sync:42", "task-0/0/abc")
    redlock.mark_done("bank.sync:421", "other/0/abc")
    with five[0].client() as client:
        client.delete("redlock:{bank.sync:42}")
    five[1].kill()
    shown = run(five.urls, "show", "bank.sync:42", "--json").json
    holders = [node.get("holder") for node in shown["nodes"]]
    assert [holder and holder.partition("@")[0] for holder in holders] == [
        None, None, "task-1", "task-1", "task-1"
    ]  # fmt: skip
    assert "error" in shown["nodes"][1]
    assert (shown["lock"]["votes"], shown["lock"]["token"]) == (3, lease.token)
    assert shown["pending"]["task_id"] == "task-2"
    assert [mark["label"] for mark in shown["done"]] == ["task-0/0/abc"]
    assert shown["next_call"].startswith("task-1 holds the lock")
    text = run(five.urls, "show", "redlock:{bank.sync:42}:floor")
    assert text.output.startswith("bank.sync:42\n")
    assert "\nlock:          held by task-1@" in text.output
    assert text.exit_code == 0
    assert lease.owner.partition(":")[0] not in text.output


@pytest.fixture
def app(five: Servers) -> Celery:
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=five.urls, redlock_restart_guard=False, redlock_node_timeout=20.0)

    @singleton_task(app=app, shared=False, name="bank.sync", lock_on_conflict="complete")
    def sync(account_id: int, month: str = "may") -> None: ...

    return app


def test_the_key_of_a_call_is_computed_as_by_the_app(
    app: Celery, five: Servers, new_redlock: NewRedlock
) -> None:
    first = run_with(app, "show", "--task", "bank.sync", "--args", "[42]", "--json")
    named = run_with(
        app, "show", "--task", "bank.sync", "--kwargs", '{"month": "may", "account_id": 42}',
        "--json",
    )  # fmt: skip
    key = first.json["key"]
    assert key == named.json["key"]
    assert key.startswith("bank.sync:")
    app.tasks["bank.sync"].apply((42,)).get()
    floors = [key_ for node in five for key_ in keys_of(node) if "{probe-" not in key_]
    assert floors == [f"redlock:{{{key}}}:floor"] * 5
    new_redlock(five.urls).acquire(key, 30, label="task-1")
    assert "lock_conflict_result" in run_with(app, "show", key).output


def keys_of(node: Server) -> list[str]:
    with node.client() as client:
        return sorted(name.decode() for name in client.scan_iter("*"))
