"""Real threads and locks, whatever has replaced those of the standard library."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from celery_redlock.redlock.threads.native import is_eventlet, is_green, new_lock, original


def patched_by_gevent(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkey = SimpleNamespace(
        is_module_patched=modules.__contains__,
        get_original=lambda module, name: f"gevent's {module}.{name}",
    )
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)


def patched_by_eventlet(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    patcher = SimpleNamespace(
        already_patched=dict.fromkeys(modules, True),
        is_monkey_patched=modules.__contains__,
        original=lambda module: SimpleNamespace(sleep=f"eventlet's {module}.sleep"),
    )
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)


@pytest.fixture(autouse=True)
def _nothing_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gevent.monkey", "eventlet.patcher"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_without_patches_the_original_is_the_module_s_own() -> None:
    assert original("time", "sleep") is time.sleep
    assert not is_green()
    assert not is_eventlet()


def test_what_gevent_replaced_is_asked_of_gevent(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by_gevent(monkeypatch, "time")
    assert original("time", "sleep") == "gevent's time.sleep"
    assert original("os", "getpid")() > 0


def test_what_eventlet_replaced_is_asked_of_eventlet(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by_eventlet(monkeypatch, "time")
    assert original("time", "sleep") == "eventlet's time.sleep"


def test_threads_are_green_only_where_they_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by_gevent(monkeypatch, "time")
    assert not is_green()
    patched_by_gevent(monkeypatch, "threading")
    assert is_green()
    assert not is_eventlet()


def test_eventlet_is_told_by_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by_eventlet(monkeypatch, "socket")
    assert not is_eventlet()
    patched_by_eventlet(monkeypatch, "thread")
    assert is_eventlet()
    assert is_green()


def test_libraries_that_are_loaded_but_idle_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by_gevent(monkeypatch)
    patched_by_eventlet(monkeypatch)
    assert original("time", "sleep") is time.sleep
    assert not is_green()


def test_a_new_lock_is_held_inside_its_block_only() -> None:
    lock = new_lock()
    with lock:
        assert lock.locked()  # type: ignore[attr-defined]
    assert not lock.locked()  # type: ignore[attr-defined]
