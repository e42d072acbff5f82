"""The findings of nodes, rights and app are one list, the worst first."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_redlock.operate.doctor import diagnose, diagnosis
from tests.support.fakes.operated import Operated


def test_what_is_found_twice_is_told_once(three: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    three[0].info["maxmemory_policy"] = "allkeys-lru"
    [once] = diagnose(three.target())
    monkeypatch.setattr(diagnosis, "rights_findings", lambda *_: [once])
    assert diagnose(three.target()) == [once]


def test_the_diagnosis_begins_with_the_worst(three: Operated) -> None:
    three[0].info["maxclients"] = "2"  # a warning of the node
    three[1].info.pop("maxmemory_policy")  # unknown
    three[2].refused["SET"] = "NOPERM"  # an error of the rights
    three[2].info["maxmemory_policy"] = "allkeys-lru"  # an error of the node
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.redlock_enabled = False  # a warning of the app
    assert [one.trap.code for one in diagnose(three.target(app=app))] == [
        "RL104", "RL116", "RL114", "RL201", "RL104"
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 4])
def test_an_even_number_of_nodes_is_an_error(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)
    [finding] = diagnose(Operated(count, monkeypatch).target(app=app))
    assert (finding.trap.code, finding.severity.value) == ("RL109", "error")
    assert finding.where == "redlock_nodes"
    assert f"must be odd (1, 3, 5 …), got {count}" in finding.what


def test_a_url_that_is_named_twice_is_an_error(three: Operated) -> None:
    [finding] = diagnose(three.target(urls=[*three.urls[:2], three.urls[0]]))
    assert finding.trap.code == "RL108"


def test_a_fleet_must_find_room_on_each_node(three: Operated) -> None:
    three[0].info["maxclients"] = "500"
    assert diagnose(three.target(), (100, 2)) == []
    assert [one.trap.code for one in diagnose(three.target(), (100, 3))] == ["RL120"]


def test_healthy_nodes_have_no_finding_and_keep_no_key(three: Operated) -> None:
    assert diagnose(three.target()) == []
    three.pass_(1.0)  # the floor of the lock that judges a node
    assert [three[number].keys() for number in range(3)] == [[], [], []]
