"""The nodes of a command, with the settings of the lock."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import target as targets
from celery_redlock.operate.node_set import NodeSet, refusal_in
from celery_redlock.operate.target import Target, target_of_app
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply
from tests.support.fakes.operated import Operated

URLS = ("redis://a", "redis://b", "redis://c")


@pytest.mark.parametrize(("node_timeout", "patience"), [(0.05, 1.0), (0.5, 2.0)])
def test_nodes_are_waited_for_as_long_as_the_lock_connects(
    three: Operated, node_timeout: float, patience: float
) -> None:
    with three.target(node_timeout=node_timeout).nodes() as nodes:
        assert [vars(one)["timeout"] for one in nodes.connections] == [patience] * 3
        assert nodes.errors == {}
    assert {*nodes.errors.values()} == {"closed"}


def test_all_nodes_are_asked_at_the_same_time(three: Operated) -> None:
    many = NodeSet(three.urls[:1] * 33, 1.0)
    all_asked = threading.Barrier(33)

    def ask(_node: DirectConnection, number: int) -> int:
        all_asked.wait(20)
        return number

    assert many.on_each(ask, range(33)) == [*range(33)]


@pytest.mark.parametrize(
    ("replies", "refusal"),
    [
        ([b"x", 1, None], None),
        ([1, ErrorReply("NOPERM"), ErrorReply("ERR")], "NOPERM"),
        (Failed("down"), "down"),
    ],
)
def test_the_first_error_of_a_node_is_its_refusal(replies: Any, refusal: str | None) -> None:
    assert refusal_in(replies) == refusal


def test_a_lock_has_the_settings_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def new(*args: Any, **options: Any) -> SimpleNamespace:
        made.append((args, options))
        return SimpleNamespace(close=lambda: made.append("closed"))

    monkeypatch.setattr(targets, "TaskLock", new)
    with Target(URLS, "bank", 0.2, 30.0, 0.5, restart_guard=False).redlock(0.7):
        assert made.pop() == (
            (URLS,),
            {
                "node_timeout": 0.7, "max_ttl": 30.0, "max_clock_skew": 0.5,
                "restart_guard": False, "key_prefix": "bank",
            },
        )  # fmt: skip
    assert made == ["closed"]


def test_nodes_are_judged_by_the_target_s_timeout_without_a_log(
    three: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    three[0].is_up = False
    three[1].delay = 0.2
    with caplog.at_level(logging.INFO, "celery_redlock"):
        states = [
            [one.state for one in three.target(node_timeout=timeout).judge()]
            for timeout in (0.1, 0.5)
        ]
    assert states == [
        [State.DOWN, State.SLOW, State.VOTES], [State.DOWN, State.VOTES, State.VOTES]
    ]  # fmt: skip
    assert caplog.records == []


def test_the_target_of_an_app_has_its_settings() -> None:
    with Celery("bank", set_as_current=False) as app:
        app.conf.update(
            redlock_nodes=URLS, redlock_key_prefix="bank", redlock_node_timeout=0.2,
            redlock_max_ttl=30.0, redlock_max_clock_skew=0.5, redlock_restart_guard=False,
            redlock_show_arguments=True,
        )  # fmt: skip
        expected = Target(
            URLS, "bank", 0.2, 30.0, 0.5, restart_guard=False, shows_arguments=True, app=app
        )
        assert target_of_app(app) == expected


def test_an_app_that_names_no_node_has_no_target() -> None:
    with Celery("bank", set_as_current=False) as app:
        app.conf.redlock_enabled = False
        with pytest.raises(ConfigurationError, match="redlock_nodes is not set"):
            target_of_app(app)
