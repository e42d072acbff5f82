"""Run the commands in this process, on simulated nodes."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_redlock import singleton_task
from celery_redlock.cli import redlock as with_app
from celery_redlock.cli.alone import main
from celery_redlock.operate import operator_log
from celery_redlock.redlock import Redlock
from tests.support.fakes.operated import Operated
from tests.support.processes.project import celery_to_itself
from tests.support.processes.ran import Ran, Run


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Operated:
    return Operated(3, monkeypatch)


@pytest.fixture
def run(three: Operated, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `celery-redlock` on the three nodes: `run("status", "--json")`.

    `options` are those of the group; with `app`, it is `celery -A bank redlock` instead. With
    `color` the output has colours.
    """
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(
        *words: str, options: Sequence[str] = (), app: Celery | None = None, color: bool = False
    ) -> Ran:
        if app is not None:
            monkeypatch.setattr(sys, "argv", ["celery", "-A", "bank", "redlock", *words])
            result = CliRunner().invoke(
                with_app, words, obj=SimpleNamespace(app=app), catch_exceptions=False, color=color
            )
        else:
            nodes = [word for url in three.urls for word in ("--node", url)]
            typed = [*nodes, *options, *words]
            monkeypatch.setattr(sys, "argv", ["celery-redlock", *typed])
            result = CliRunner().invoke(main, typed, catch_exceptions=False, color=color)
        return Ran(result.exit_code, result.output)

    return run


@pytest.fixture
def standard_error(capsys: pytest.CaptureFixture[str], bank: Celery) -> Callable[..., str]:
    """Return what `celery -A bank redlock` writes to the standard error."""

    def standard_error(*words: str) -> str:
        with pytest.raises(SystemExit):
            with_app.main(words, obj=SimpleNamespace(app=bank))
        return capsys.readouterr().err

    return standard_error


@pytest.fixture(autouse=True)
def _time_of_the_nodes(three: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lock's age be counted in the time of the nodes; pauses take none."""
    time_ = SimpleNamespace(
        time=lambda: three.wall_us() / 1e6,
        sleep=three.sleep,
        strftime=time.strftime,
        localtime=time.localtime,
    )
    for name in ("end", "list_", "log", "release", "releases", "show", "top"):
        monkeypatch.setattr(importlib.import_module(f"celery_redlock.cli.{name}"), "time", time_)
    monkeypatch.setattr(operator_log, "time", time_)


@pytest.fixture
def redlock(three: Operated) -> Redlock:
    """A lock on the three nodes."""
    return three.redlock()


@pytest.fixture
def bank(three: Operated) -> Iterator[Celery]:
    """An app on the three nodes, with one singleton task."""
    with Celery("bank", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=three.urls, redlock_restart_guard=False)

        @singleton_task(app=app, shared=False, name="bank.sync", lock_on_conflict="complete")
        def sync(account_id: int, month: str = "may") -> None: ...

        yield app


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests() -> Iterator[None]:
    """An app has its own tasks only: a shared one of another test is in every app after it."""
    with celery_to_itself():
        yield
