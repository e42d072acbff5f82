"""Options and settings of other packages: each is refused, with what to write instead."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, new_class
from typing import Any, ClassVar

import pytest
from celery import Celery, Task

import celery_redlock
from celery_redlock import SingletonTask
from celery_redlock.config.declared_options import (
    declared_options,
    lock_options,
    refuse_per_call,
)
from celery_redlock.config.foreign_options import foreign_option, is_foreign_duplicate
from celery_redlock.config.settings import settings_from
from celery_redlock.redlock.errors import ConfigurationError

UNTIL_EXECUTED = 'lock_lifetime="until_executed"'
NODES = ["redis://a", "redis://b", "redis://c"]


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("once", {"graceful": True}, UNTIL_EXECUTED),
        ("once", {}, f'{UNTIL_EXECUTED}, lock_on_conflict="raise"'),
        ("once", {"graceful": True, "keys": ["a"]}, f'{UNTIL_EXECUTED}, lock_key=["a"]'),
        ("once", {"graceful": True, "keys": []}, f"{UNTIL_EXECUTED}, lock_key=[]"),
        (
            "once",
            {"graceful": True, "unlock_before_run": True},
            'lock_lifetime="until_executing"',
        ),
        ("unique_on", ["b", "a"], f'{UNTIL_EXECUTED}, lock_key=["b", "a"]'),
        ("unique_on", "user", f'{UNTIL_EXECUTED}, lock_key=["user"]'),
        ("once", {"graceful": True, "keys": None}, UNTIL_EXECUTED),
        ("unique_on", [], UNTIL_EXECUTED),
        ("unique_on", "", UNTIL_EXECUTED),
        ("unique_on", {"b", 0, "a"}, f'{UNTIL_EXECUTED}, lock_key=[0, "a", "b"]'),
        ("raise_on_duplicate", True, 'lock_on_conflict="raise"'),
        ("heimdall", {"unique": True}, UNTIL_EXECUTED),
        (
            "heimdall",
            {"unique": True, "unique_wait_for_expiry": True},
            'lock_lifetime="until_expired", lock_ttl=3600',
        ),
        (
            "heimdall",
            {"unique": True, "unique_wait_for_expiry": True, "unique_timeout": 60},
            'lock_lifetime="until_expired", lock_ttl=60',
        ),
        (
            "heimdall",
            {"unique": True, "key": "sync-{0}"},
            f"{UNTIL_EXECUTED}, lock_key=[] (one lock for the task)",
        ),
        (
            "heimdall",
            {"unique": True, "unique_raises": True, "key": len},
            (
                f"{UNTIL_EXECUTED}, lock_key=<a function with the task's own parameters>, "
                'lock_on_conflict="raise"'
            ),
        ),
    ],
)
def test_what_to_write_instead_is_told(name: str, value: object, instead: str) -> None:
    problem = foreign_option(name, value)
    assert problem is not None
    assert problem.endswith(f"; write {instead}")


@pytest.mark.parametrize(
    ("unique", "remedy"), [({}, "remove it"), ({"unique": True}, f"write {UNTIL_EXECUTED}")]
)
def test_a_rate_limit_is_told_to_have_no_counterpart(
    unique: dict[str, object], remedy: str
) -> None:
    assert foreign_option("heimdall", {**unique, "times": 2, "per": 60}) == (
        f"is an option of celery-heimdall, which has no effect here; {remedy}: "
        "a lock limits no rate; keep HeimdallTask for that, on another task"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("raise_on_duplicate", False), ("lock_expiry", 60), ("lock_expiry", None), ("heimdall", {})],
)
def test_what_has_no_counterpart_is_to_be_removed(name: str, value: object) -> None:
    problem = foreign_option(name, value)
    assert problem is not None
    assert problem.endswith("; remove it")


@pytest.mark.parametrize(
    ("name", "value"), [("once", lambda: None), ("unique_on", None), ("once_more", {})]
)
def test_attributes_of_the_users_own_are_none(name: str, value: object) -> None:
    assert foreign_option(name, value) is None


def test_a_lock_option_instead_makes_a_valid_task() -> None:
    instead = {"lock_lifetime": "until_executed", "lock_key": ["a"], "lock_on_conflict": "raise"}
    assert lock_options("sync", instead, {}, max_ttl=60.0).key == ["a"]


def test_a_task_that_has_one_is_refused_as_it_is_bound() -> None:
    app = Celery("bank", set_as_current=False)
    app.conf.redlock_nodes = NODES
    with pytest.raises(ConfigurationError, match=r"unique_on = .*celery-singleton.*lock_key"):

        @app.task(base=SingletonTask, name="sync", shared=False, unique_on=["a"], lazy=False)
        def sync(a: int) -> None: ...


def test_a_method_of_that_name_is_no_option() -> None:
    class Mine(SingletonTask):
        name = "mine"

        def once(self) -> None: ...

    declared = declared_options(Mine)
    assert lock_options("mine", declared, {}, max_ttl=60.0).key is None


def test_a_call_that_has_one_is_refused() -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = NODES

    @app.task(base=SingletonTask, name="sync", shared=False)
    def sync(a: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'sync': once = .* where the task is defined"):
        sync.apply_async((1,), once={"graceful": True})


@pytest.fixture
def _none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("celery_once", "celery_singleton", "celery_heimdall"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("_none_is_installed")
@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"ONCE": {"backend": "x"}}, "ONCE is a setting of celery-once.*set redlock_nodes"),
        ({"singleton_backend_url": "redis://a"}, "singleton_backend_url .*set redlock_nodes"),
        ({"heimdall_lock_prefix": "bank"}, "is a setting of celery-heimdall.*redlock_key_prefix"),
        ({"heimdall_unique_timeout": 60}, "heimdall_unique_timeout .*remove it"),
        ({"singleton_lock_expiry": 60}, "singleton_lock_expiry .*remove it"),
    ],
)
def test_a_setting_that_was_left_over_is_refused(conf: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        settings_from({"redlock_nodes": NODES, **conf})


def test_a_setting_of_a_package_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery_singleton", ModuleType("celery_singleton"))
    conf = {"redlock_nodes": NODES, "singleton_backend_url": "redis://a"}
    assert settings_from(conf).nodes == tuple(NODES)


def test_a_setting_of_a_package_that_is_not_loaded_yet_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", ModuleType)
    monkeypatch.delitem(sys.modules, "celery_once", raising=False)
    assert settings_from({"redlock_nodes": NODES, "ONCE": {}}).nodes == tuple(NODES)


@pytest.mark.usefixtures("_none_is_installed")
def test_a_name_of_another_package_outside_of_the_namespace_is_no_setting() -> None:
    class Source:
        CELERY_REDLOCK_NODES = NODES
        CELERY_TASK_ACKS_LATE = True
        ONCE = {"of": "somebody"}  # noqa: RUF012

    app = Celery("bank", set_as_current=False)
    app.config_from_object(Source, namespace="CELERY")
    assert settings_from(app.conf).nodes == tuple(NODES)


@pytest.mark.usefixtures("_none_is_installed")
def test_a_name_that_an_apps_module_imports_is_no_setting() -> None:
    """As with `config_from_object(__name__)` in an app of a single file."""
    module = ModuleType("bank")
    for name in celery_redlock.__all__:
        setattr(module, name, getattr(celery_redlock, name))
    vars(module)["redlock_nodes"] = NODES
    app = Celery("bank", set_as_current=False)
    app.config_from_object(module)
    assert settings_from(app.conf).nodes == tuple(NODES)


def raised(*, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error = ValueError()
    error.__cause__, error.__context__ = cause, context
    return error


def test_the_error_of_another_package_for_a_duplicate_is_known() -> None:
    duplicate = type("AlreadyQueued", (Exception,), {"__module__": "celery_once.tasks"})()
    derived = type("Mine", (type(duplicate),), {})()
    for known in (duplicate, derived, raised(cause=duplicate), raised(context=duplicate)):
        assert is_foreign_duplicate(known)
        assert is_foreign_duplicate(raised(context=known))
    of_another = type("AlreadyQueued", (Exception,), {})()
    for unknown in (of_another, raised(cause=of_another, context=duplicate), raised()):
        assert not is_foreign_duplicate(unknown)


class QueueOnce(Task):  # type: ignore[type-arg]
    abstract = True
    once: ClassVar[dict[str, bool]] = {"graceful": True}
    lock_and_run = None


QueueOnce.__module__ = "celery_once.tasks"


def test_a_task_with_both_classes_keeps_the_options_of_both() -> None:
    class Both(QueueOnce, SingletonTask):
        abstract = True
        once: ClassVar[dict[str, bool]] = {"graceful": False}
        lock_key = "k"

    assert declared_options(Both)["lock_key"] == declared_options(Both())["lock_key"] == "k"
    assert not {"once", "lock_and_run"} & declared_options(Both).keys()
    assert not {"once", "lock_and_run"} & declared_options(Both()).keys()
    refuse_per_call(Both(), {"once": {}})


def test_an_expiry_of_the_other_package_is_no_unknown_option() -> None:
    class Singleton(Task):  # type: ignore[type-arg]
        abstract = True

    Singleton.__module__ = "celery_singleton"

    class Both(Singleton, SingletonTask):
        abstract = True
        lock_expiry = 60

    assert "lock_expiry" not in declared_options(Both)


def test_with_the_classes_the_other_way_round_the_options_are_refused() -> None:
    class Both(SingletonTask, QueueOnce):
        abstract = True

    assert "once" in declared_options(Both)


@pytest.mark.parametrize("package", ["celery_once", "celery_singleton"])
def test_a_class_that_comes_after_ours_is_refused_with_the_right_order(package: str) -> None:
    app = Celery("bank", set_as_current=False)
    app.conf.redlock_nodes = NODES
    other = type("Other", (Task,), {"abstract": True, "once": {}, "lock_expiry": None})
    other.__module__ = f"{package}.tasks"
    behind = new_class(
        "Behind", (SingletonTask, other), exec_body=lambda body: body.update(abstract=True)
    )

    said = rf"'sync' has Other of {package.replace('_', '-')} as .*BothLocks\(Other, Singlet"
    with pytest.raises(ConfigurationError, match=said):

        @app.task(base=behind, name="sync", shared=False, lazy=False)
        def sync(a: int) -> None: ...


def test_a_token_parameter_beside_another_packages_class_is_refused() -> None:
    app = Celery("bank", set_as_current=False)
    app.conf.redlock_nodes = NODES

    class Both(QueueOnce, SingletonTask):
        abstract = True

    said = r"'sync' takes .* which QueueOnce would .* read self\.fencing_token"
    with pytest.raises(ConfigurationError, match=said):

        @app.task(base=Both, name="sync", shared=False, lazy=False)
        def sync(a: int, *, fencing_token: int) -> None: ...

    @app.task(base=Both, name="other", shared=False, lazy=False)
    def other(a: int) -> None: ...
