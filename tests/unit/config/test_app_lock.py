"""The lock of an app is made once, from its settings."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.utils import Settings
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_redlock.config import app_lock
from celery_redlock.config.app_lock import (
    has_redlock,
    is_enabled,
    log_weak_locking,
    new_redlock,
    redlock_of,
)
from celery_redlock.config.settings import KNOWN_SETTINGS, settings_from
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.processes.project import celery_to_itself

NODES = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]


@pytest.fixture
def bare() -> Iterator[Celery]:
    """An app whose lock is not made yet."""
    with celery_to_itself(), Celery("bare", broker="memory://", set_as_current=False) as app:
        app.conf.redlock_nodes = NODES
        yield app


def test_an_app_has_one_lock_and_another_app_has_its_own(bare: Celery, app: Celery) -> None:
    redlock = redlock_of(bare)
    assert redlock_of(bare) is redlock
    assert redlock_of(app) is not redlock
    redlock.close()


def test_a_lock_that_is_made_needs_no_settings_any_more(bare: Celery) -> None:
    assert not has_redlock(bare)
    redlock = redlock_of(bare)
    assert has_redlock(bare)
    bare.conf.redlock_nodes = []
    assert redlock_of(bare) is redlock
    redlock.close()


def test_a_lock_has_the_settings_of_its_app(bare: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "node_timeout": 0.5,
        "max_ttl": 77.0,
        "max_clock_skew": 2.0,
        "restart_guard": False,
        "key_prefix": "bank",
        "idle_timeout": 7.0,
        "max_connections": 5,
    }
    bare.conf.update({f"redlock_{name}": value for name, value in given.items()})
    monkeypatch.setattr(app_lock, "TaskLock", lambda *nodes, **more: (*nodes, more))
    made: Any = new_redlock(settings_from(bare.conf))
    assert made == (tuple(NODES), given)


def test_after_refused_settings_corrected_ones_make_the_lock(bare: Celery) -> None:
    bare.conf.redlock_nodes = NODES[:2]
    with pytest.raises(ConfigurationError, match="got 2"):
        redlock_of(bare)
    bare.conf.redlock_nodes = NODES
    redlock_of(bare).close()


@pytest.mark.parametrize(("said", "enabled"), [({}, True), ({"redlock_enabled": False}, False)])
def test_tasks_are_locked_unless_that_is_switched_off(
    bare: Celery, said: dict[str, bool], enabled: bool
) -> None:
    bare.conf.update(said)
    assert is_enabled(bare) is enabled
    bare.conf.redlock_enabled = not enabled
    assert is_enabled(bare) is not enabled, "as the configuration stands at this moment"


@pytest.mark.parametrize(("said", "enabled"), [({}, True), ({"redlock_enabled": False}, False)])
def test_once_there_is_a_lock_the_switch_is_found_at_once_and_still_works(
    bare: Celery, said: dict[str, bool], enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.conf.update(said)
    redlock_of(bare).close()
    # That is what takes long.
    monkeypatch.setattr(Settings, "get", None)
    assert is_enabled(bare) is enabled
    bare.conf.redlock_enabled = not enabled
    assert is_enabled(bare) is not enabled


@pytest.mark.parametrize(
    ("namespace", "name"), [(None, "redlock_enabled"), ("CELERY", "CELERY_REDLOCK_ENABLED")]
)
def test_the_switch_works_in_the_source_after_the_first_lock(
    namespace: str | None, name: str
) -> None:
    source = SimpleNamespace()
    with celery_to_itself(), Celery("late", set_as_current=False) as late:
        late.config_from_object(source, namespace=namespace)
        late.conf.redlock_nodes = NODES
        redlock_of(late).close()
        assert is_enabled(late)
        assert "redlock_enabled" not in (late.conf.changes or {})
        # As Django's `override_settings` does.
        setattr(source, name, False)
        assert not is_enabled(late)
        delattr(source, name)
        assert is_enabled(late)


@pytest.mark.parametrize("namespace", [None, "CELERY"])
@pytest.mark.parametrize("name", ["redlock_enabled", "CELERY_REDLOCK_ENABLED"])
@pytest.mark.parametrize("layer", ["changes", "defaults"])
@pytest.mark.parametrize("value", [False, True, None])
@pytest.mark.parametrize("beside", [{}, {"redlock_enabled": True}])
def test_the_switch_is_what_celery_finds(
    namespace: str | None, name: str, layer: str, value: object, beside: dict[str, bool]
) -> None:
    with celery_to_itself(), Celery("one", namespace=namespace, set_as_current=False) as one:
        one.conf.update(beside)
        one.conf.get("redlock_nodes")  # Celery loads the configuration now
        if layer == "changes":
            one.conf.update({name: value})
        else:
            one.conf.add_defaults({name: value})
        # Of two names in two sources an older Celery takes the other one.
        is_in_both = beside and layer == "defaults"
        found = True if is_in_both else one.conf.get("redlock_enabled")
        assert is_enabled(one) is (found is not False)


@pytest.fixture
def _nothing_logged() -> Iterator[None]:
    """As if nothing had been warned of yet."""
    app_lock._warn_disabled.cache_clear()
    yield
    app_lock._warn_disabled.cache_clear()


@pytest.mark.usefixtures("_nothing_logged")
def test_locking_that_is_switched_off_is_warned_of_once(
    bare: Celery, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.conf.update(redlock_enabled=False, redlock_nodes=None)
    # Beat makes its scheduler before it sets up its log.
    monkeypatch.setattr(app_lock.logger, "hasHandlers", lambda: False)
    log_weak_locking(bare)
    monkeypatch.undo()
    for _ in range(2):
        log_weak_locking(bare)
    said = "locking switched off: redlock_enabled is False, tasks run without a lock"
    assert log() == [("WARNING", said)] * 2


def test_locking_on_nodes_is_not_warned_of_but_checked(bare: Celery, log: Any) -> None:
    log_weak_locking(bare)
    assert log() == []
    bare.conf.redlock_nodes = None
    with pytest.raises(ConfigurationError, match="redlock_nodes is not set"):
        log_weak_locking(bare)


_URLS = st.one_of(
    st.builds("redis://{}".format, st.text("/:@[]?=&#%.019 aé\0\ud800", max_size=20)),
    st.builds(
        "redis://host:1?{}={}".format,
        st.sampled_from(["db", "protocol", "password", "socket_timeout", "client_name", "retry"]),
        st.text(max_size=4) | st.integers().map(str),
    ),
)
_ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.decimals(),
    st.text(max_size=5), st.binary(max_size=4), st.lists(st.integers(), max_size=2),
    st.just(object()),
)  # fmt: skip


@given(
    nodes=st.lists(_URLS, min_size=1, max_size=1) | st.lists(_URLS, min_size=3, max_size=3),
    name=st.sampled_from(sorted(KNOWN_SETTINGS)),
    value=_ANYTHING,
)
@settings(max_examples=200)
def test_any_settings_make_a_lock_or_are_refused(
    nodes: list[str], name: str, value: object
) -> None:
    try:
        redlock = new_redlock(settings_from({"redlock_nodes": nodes, name: value}))
    except ConfigurationError as error:
        # What, where and how to mend it, whatever the value is.
        assert "redlock_" in str(error) or "node" in str(error)  # noqa: PT017
        str(error).encode("utf-8", "surrogatepass")
    else:
        redlock.close()
