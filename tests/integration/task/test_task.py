"""A singleton task in a real worker: what it holds while it runs, and when it lets go."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from celery import chain, chord

from celery_redlock import DuplicateTask, QuorumUnavailable
from celery_redlock.testing import start_servers
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project

QUORUM = 2


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("locked")
    project.start_worker()
    return project


# --- the token ------------------------------------------------------------------------------------


def test_a_task_is_told_its_token_in_every_way(project: Project, key: str) -> None:
    tokens = project.tasks.telling.delay(key).get(timeout=PATIENCE)
    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    # µs since the epoch, roughly
    assert abs(tokens[0] / 1e6 - time.time()) < 600


def test_tokens_grow_from_run_to_run_whichever_process_runs_it(project: Project, key: str) -> None:
    tokens = [project.tasks.skipping.delay(key).get(timeout=PATIENCE) for _ in range(30)]
    assert tokens == sorted(set(tokens))


# --- held while it runs ---------------------------------------------------------------------------


def test_different_keys_run_at_the_same_time(project: Project, key: str) -> None:
    results = [project.tasks.skipping.delay(f"{key}-{i}", key) for i in range(3)]
    for result in results:
        project.run_of(result.id)
    project.open(key)
    for result in results:
        assert isinstance(result.get(timeout=PATIENCE), int)


def test_the_nodes_have_the_lock_exactly_while_the_body_runs(project: Project, key: str) -> None:
    assert project.holds(key) == []
    result = project.tasks.skipping.delay(key, key)
    project.run_of(result.id)
    assert project.votes(result.id) >= QUORUM
    assert {hold.key for hold in project.holds(key)} == {
        f"redlock:{{{project.tasks.skipping.name}:{key}}}"
    }
    project.open(key)
    result.get(timeout=PATIENCE)
    assert project.holds(key) == []


def test_a_task_much_longer_than_its_ttl_keeps_its_lock(project: Project, key: str) -> None:
    began = time.monotonic()
    holder = project.tasks.brief.delay(key, key)
    project.run_of(holder.id)
    # Its ttl is 5 s.
    while time.monotonic() < began + 7.5:
        assert project.votes(holder.id) >= QUORUM
        time.sleep(0.05)
    with pytest.raises(DuplicateTask):
        project.tasks.brief.delay(key).get(timeout=PATIENCE)
    project.open(key)
    assert isinstance(holder.get(timeout=PATIENCE), int)
    assert len(project.notes("begin", key=key)) == 1


def test_a_task_that_holds_the_gil_keeps_its_lock(project: Project, key: str) -> None:
    holder = project.tasks.hogging.delay(key, 8)
    run, votes = project.run_of(holder.id), QUORUM
    while time.monotonic() < run.at + 7.5:  # what was read later may be after its end
        assert votes >= QUORUM
        time.sleep(0.05)
        votes = project.votes(holder.id)
    assert holder.get(timeout=PATIENCE) is False


# --- released before anybody can see that it ended ------------------------------------------------


def test_the_lock_is_free_when_the_result_is_there(project: Project, key: str) -> None:
    for _ in range(50):
        project.tasks.skipping.delay(key).get(timeout=PATIENCE)


def test_the_lock_is_free_when_the_failure_is_there(project: Project, key: str) -> None:
    for _ in range(20):
        with pytest.raises(Exception, match=key) as caught:
            project.tasks.failing.delay(key).get(timeout=PATIENCE)
        assert type(caught.value).__name__ == "NotToday"
    assert len(project.notes("begin", key=key)) == 20


def test_a_step_of_a_chain_never_meets_its_predecessor(project: Project, key: str) -> None:
    step = project.tasks.skipping.si(key)
    for _ in range(4):
        assert isinstance(chain(*[step] * 5).delay().get(timeout=PATIENCE), int)
    assert len(project.notes("begin", key=key)) == 20
    assert project.most_at_once(key=key) == 1


def test_links_and_chord_bodies_never_overlap_what_they_follow(project: Project, key: str) -> None:
    step = project.tasks.skipping.si(key)
    for _ in range(5):
        chord([step], step).delay().get(timeout=PATIENCE)
    begun = len(project.notes("begin", key=key))
    assert begun == 10
    for count in range(5):
        project.tasks.failing.apply_async((f"{key}-2",), link_error=step)
        project.wait_for_note("end", key=key, count=begun + count + 1)


# --- min_hold and max_hold ------------------------------------------------------------------------


def test_min_hold_keeps_the_lock_after_the_end(project: Project, key: str) -> None:
    result = project.tasks.lingering.delay(key)
    result.get(timeout=PATIENCE)
    assert project.votes(result.id) >= QUORUM
    assert all(0 < hold.remaining <= 8 for hold in project.holds(key))
    with pytest.raises(DuplicateTask) as caught:
        project.tasks.lingering.delay(key).get(timeout=PATIENCE)
    assert caught.value.holder == result.id
    assert caught.value.remaining <= 8
    eventually(lambda: not project.holds(key))
    project.tasks.lingering.delay(key).get(timeout=PATIENCE)
    first, second = project.notes("begin", key=key)
    assert second.at - first.at >= 7.9


def test_min_hold_loses_no_retry(project: Project, key: str) -> None:
    result = project.tasks.lingering.apply_async((key,), {"times": 2})
    assert isinstance(result.get(timeout=PATIENCE), int)
    first, second = project.notes("begin", key=key)
    assert first.task_id == second.task_id == result.id
    assert second.at - first.at >= 7.9


def test_after_max_hold_a_hung_task_no_longer_blocks_the_next(project: Project, key: str) -> None:
    hung = project.tasks.overstaying.delay(key, key)
    first = project.run_of(hung.id)
    eventually(lambda: not project.holds(key))
    assert time.monotonic() - first.at >= 3
    second = project.tasks.overstaying.delay(key).get(timeout=PATIENCE)
    assert second is False
    project.open(key)
    # It has been told.
    assert hung.get(timeout=PATIENCE) is True
    tokens = project.tokens(key=key)
    assert tokens == sorted(set(tokens))


# --- calls within a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["counting_down", "counting_down_on_a_base"])
def test_a_recursive_call_is_a_plain_one_within_the_same_run(project: Project, task: str) -> None:
    tokens = getattr(project.tasks, task).delay(4).get(timeout=PATIENCE)
    assert len(tokens) == 5
    assert isinstance(tokens[0], int)
    assert tokens[1:] == [None] * 4, "their keys are others"


def test_another_task_called_directly_is_a_plain_function(project: Project, key: str) -> None:
    mine, its, mine_after = project.tasks.calling_another.delay(key).get(timeout=PATIENCE)
    assert mine == mine_after
    # What it noted, it noted under the caller's lease.
    [begin] = project.notes("begin", key=key)
    assert begin.token == mine
    assert its == mine


# --- no quorum ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile(new_project: NewProject, new_nodes: NewNodes) -> Project:
    """A project with lock nodes of its own, which may be stopped."""
    project = new_project("locked", nodes=new_nodes(3))
    project.start_worker()
    return project


@pytest.fixture
def without_quorum(fragile: Project) -> Iterator[Project]:
    """The project `fragile` with two of its three nodes dead, alive again after the test."""
    for node in fragile.nodes[1:]:
        node.kill()
    yield fragile
    for node in fragile.nodes[1:]:
        node.start()


def test_without_a_quorum_run_runs_without_a_lock_and_says_so(without_quorum: Project) -> None:
    key = uuid.uuid4().hex
    result = without_quorum.tasks.reckless.delay(key)
    assert result.get(timeout=PATIENCE) == [None, None, True]
    # One of the first of an outage does, for each process of the pool.
    lines = without_quorum.workers[0].lines("ERROR.*no quorum key=.*task=.*task_id=.*outcome=")
    assert 1 <= len(lines) <= 4


def test_without_a_quorum_reschedule_waits_for_one(fragile: Project) -> None:
    key = uuid.uuid4().hex
    for node in fragile.nodes[1:]:
        node.kill()
    try:
        result = fragile.tasks.patient.delay(key)
        eventually(lambda: result.state == "RETRY")
        assert isinstance(result.result, QuorumUnavailable)
        assert fragile.notes("begin", key=key) == []
    finally:
        for node in fragile.nodes[1:]:
            node.start()
    retries, token = result.get(timeout=PATIENCE)
    assert retries == 0
    assert isinstance(token, int)


# --- switched off, and refused at start -----------------------------------------------------------


def test_a_worker_that_does_not_lock_needs_no_nodes(new_project: NewProject) -> None:
    with start_servers(1) as nodes:
        urls = nodes.urls
    project = new_project("locked", redlock_enabled=False, redlock_nodes=urls * 2)
    worker = project.start_worker()
    results = [project.tasks.reckless.delay("key") for _ in range(3)]
    assert [result.get(timeout=PATIENCE) for result in results] == [[None, None, True]] * 3
    assert worker.lines("ERROR|lock conflict") == []


def test_without_nodes_the_result_backend_is_used_with_a_warning(
    new_project: NewProject,
) -> None:
    project = new_project("locked", redlock_nodes=None)
    worker = project.start_worker()
    tokens = [project.tasks.skipping.delay("key").get(timeout=PATIENCE) for _ in range(3)]
    assert tokens == sorted(set(tokens))
    warning = "quorum of one: redlock_nodes is not set, so the result_backend is the only node"
    assert len(worker.lines(warning)) == 1


def refusal_of(project: Project) -> str:
    """Return the log of a worker that must not start."""
    worker = project.new_worker()
    worker.start()
    assert worker.wait_until_ended() != 0
    assert worker.lines(r"ready\.") == []
    return worker.log_text()


def test_a_worker_refuses_an_even_number_of_nodes(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    log = refusal_of(new_project("locked", nodes=new_nodes(2)))
    assert "ConfigurationError" in log
    assert "must be odd (1, 3, 5 …), got 2" in log


def test_a_worker_starts_while_the_nodes_are_away_and_says_so(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(3)
    for node in nodes[1:]:
        node.kill()
    project = new_project("locked", nodes=nodes)
    worker = project.start_worker()
    line = worker.wait_for_line("no quorum at start")
    assert "ERROR" in line
    assert "votes=1 of=3" in line
    for node in nodes[1:]:
        assert f"127.0.0.1:{node.port}" in line
        node.start()
    # It takes them back by itself.
    assert isinstance(project.tasks.patient.delay("key").get(timeout=PATIENCE)[1], int)
