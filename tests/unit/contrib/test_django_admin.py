"""Locks in Django's admin, on simulated nodes: who may see what, and what a form does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from html import unescape
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import ending, operator_log, snapshots
from celery_redlock.operate.ending import Ending, Order
from celery_redlock.operate.locks import Lock
from celery_redlock.operate.operator_log import Action, read_log, recorded
from celery_redlock.operate.removal import operator
from celery_redlock.operate.snapshots import Snapshots
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.units import seconds
from tests.support.fakes.django_site import Staff
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active
from tests.support.processes.project import celery_to_itself

from django.apps import apps  # isort: skip  # once it is configured
from django.contrib import admin as sites  # isort: skip
from django.test import Client  # isort: skip
from django.urls import clear_url_caches  # isort: skip
from celery_redlock.contrib.django import admin, models  # isort: skip

PAGES = "/admin/celery_redlock/lock/"
LIST = "celery_redlock_lock_changelist"


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Operated:
    return Operated(3, monkeypatch)


@pytest.fixture
def redlock(three: Operated) -> TaskLock:
    return three.redlock()


@pytest.fixture
def bank(three: Operated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The app of the site, whose worker runs `task-1`."""
    clear_url_caches()
    with celery_to_itself(), Celery("bank", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=three.urls, redlock_restart_guard=False)
        Told(app, monkeypatch, {"celery@vm": [active("task-1")]})
        monkeypatch.setattr(apps.get_app_config("celery_redlock"), "celery_app", app)
        monkeypatch.setattr(sites.site.get_model_admin(models.Lock), "_snapshots", None)
        time = SimpleNamespace(time=lambda: three.wall_us() / 1e6, sleep=three.sleep)
        monkeypatch.setattr(admin, "time", time)
        monkeypatch.setattr(operator_log, "time", time)
        monkeypatch.setattr(admin, "Snapshots", partial(Snapshots, now=time.time))
        yield app


def text_of(html: str) -> str:
    """Return what a page says, without its tags and line breaks."""
    main = html.partition('id="container"')[2]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", main)))


class Site:
    """The admin, for somebody with some permissions: `as_("view_lock")` gives them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._client = Client()
        self.as_("view_lock", "release_lock", "end_run")

    def as_(self, *permissions: str) -> None:
        self._patch.setattr(Staff, "permissions", frozenset(permissions))

    def get(self, page: str = "", **query: str) -> Any:
        return self._client.get(PAGES + page, query)

    def post(self, page: str, **form: str) -> Any:
        return self._client.post(PAGES + page, form)

    def shown(self, page: str = "", **query: str) -> str:
        response = self._client.get(PAGES + page, query, follow=True)
        assert response.status_code == 200
        return text_of(response.text)

    def sent(self, page: str, **form: str) -> str:
        """Send a form; return what the list says then."""
        response = self._client.post(PAGES + page, form, follow=True)
        assert response.redirect_chain == [(PAGES, 302)]
        return text_of(response.text)

    def form(self, page: str, **query: str) -> dict[str, str]:
        """Return the hidden fields of a confirmation."""
        html = self.get(page, **query).text.split('method="post"')[-1]
        fields = re.findall(r'name="(\w+)" value="([^"]*)"', html)
        return {name: unescape(value) for name, value in fields if "csrf" not in name}


@pytest.fixture
def site(bank: Celery, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "needed"),
    [
        ("", ["view_lock"]),
        ("lock/", ["view_lock"]),
        ("release/", ["view_lock", "release_lock"]),
        ("end/", ["view_lock", "end_run"]),
    ],
)
def test_each_page_needs_its_permissions(
    site: Site, redlock: TaskLock, page: str, needed: list[str]
) -> None:
    redlock.acquire("k", 30, label="task-1")
    every = {"view_lock", "release_lock", "end_run"}
    for lacking in needed:
        site.as_(*(every - {lacking}))
        assert site.get(page, key="k").status_code == 403
        if page in ("release/", "end/"):
            assert site.post(page, key="k").status_code == 403
    site.as_(*needed)
    assert site.get(page, key="k").status_code == 200


@pytest.mark.parametrize("page", ["", "lock/"])
def test_pages_that_only_show_take_no_form(site: Site, page: str) -> None:
    assert site.post(page, key="k").status_code == 405


def test_only_staff_comes_to_the_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staff, "is_staff", False)
    assert site.get().status_code == 302
    assert site.get().url.startswith("/admin/login/")


def test_the_model_itself_is_only_viewed(site: Site) -> None:
    model = sites.site.get_model_admin(models.Lock)
    request: Any = SimpleNamespace(user=Staff())
    may = {"add": False, "change": False, "delete": False, "view": True}
    assert model.get_model_perms(request) == may
    assert [model.has_change_permission(request), model.has_delete_permission(request)] == [
        False, False,
    ]  # fmt: skip


def test_the_locks_are_those_of_the_current_app(bank: Celery) -> None:
    config = apps.get_app_config("celery_redlock")
    bank.set_current()
    config.celery_app = None
    config.ready()
    assert config.celery_app is bank


def test_a_lock_is_called_by_its_key() -> None:
    assert str(models.Lock(key="bank.sync:1")) == "bank.sync:1"


# --- the list -------------------------------------------------------------------------------------


def test_the_list_shows_nodes_and_locks(site: Site, redlock: TaskLock, three: Operated) -> None:
    assert "Nothing is held." in site.shown()
    sites.site.get_model_admin(models.Lock)._snapshots = None
    redlock.acquire("bank.sync:<b>", 30, label="task-1")
    redlock.reserve("bank.sync:2", 60, label="task-2")
    three[2].is_up = False
    html = site.get().text
    assert '<li class="warning">Locks work, but one more failed node stops all' in html
    assert "<b>" not in html
    text = text_of(html)
    assert "127.0.0.1:7002 down Connection refused" in text
    for shown in ("bank.sync:<b> held", "bank.sync:2 reserved", "celery@vm (pid 7)"):
        assert shown in text
    assert "<title>Locks |" in html
    for unasked in ("(42,)", "Arguments", "No lock matches", "held longest", "Beat missed"):
        assert unasked not in text


def test_a_list_that_no_quorum_shows_is_unknown(site: Site, three: Operated) -> None:
    for number in range(3):
        three[number].refused["SCAN"] = "NOPERM no permissions"
    text = text_of(site.get().text)
    assert "Other locks may be held, and ticks missed: 0 of 3 nodes answered" in text
    assert "Nothing is held." not in text


def test_arguments_are_shown_if_the_app_says_so(
    site: Site, redlock: TaskLock, bank: Celery
) -> None:
    bank.conf.redlock_show_arguments = True
    redlock.acquire("k", 30, label="task-1")
    assert "(42,)" in site.shown()
    assert "arguments: (42,)" in site.shown("lock/", key="k")


def test_those_who_ask_within_a_second_share_an_overview(
    site: Site, three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(admin, "Snapshots", partial(Snapshots, now=lambda: now[0]))
    site.shown()
    three[0].is_up = False
    assert "3 of 3 nodes vote" in site.shown()
    now[0] += 60.0
    assert "2 of 3 nodes vote" in site.shown()


@pytest.mark.parametrize(("down", "level"), [(0, "success"), (1, "warning"), (2, "error")])
def test_the_verdict_has_the_colour_of_its_level(
    site: Site, three: Operated, down: int, level: str
) -> None:
    for number in range(down):
        three[number].is_up = False
    assert f'<ul class="messagelist"><li class="{level}">' in site.get().text


def test_the_list_is_filtered_by_key_and_kind(
    site: Site, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("bank.sync:1", 30)
    redlock.reserve("bank.sync:2", 30)
    redlock.acquire("other", 30)

    def keys(**query: str) -> list[str]:
        return re.findall(r'key=[^"]*">([^<]+)</a>', site.get(**query).text)

    assert sorted(keys()) == ["bank.sync:1", "bank.sync:2", "other"]
    assert sorted(keys(q="sync")) == ["bank.sync:1", "bank.sync:2"]
    assert keys(q="sync", kind="held") == ["bank.sync:1"]
    html = site.get(q="no such", kind="pending").text
    assert "No lock matches the filter." in html
    assert 'name="q" value="no such"' in html
    kinds = re.findall(r"<option( selected)?>(\w+)</option>", html)
    assert kinds == [("", "held"), ("", "reserved"), (" selected", "pending")]


def test_a_list_that_is_cut_says_so(
    site: Site, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(201):
        redlock.acquire(f"k:{number}", 30)
    text = site.shown()
    assert "These are the 200 held longest of 201." in text
    assert "The filter searches" not in site.shown(q="k:")
    assert "held longest of" not in site.shown(q="k:7")


@pytest.mark.parametrize("query", [{}, {"q": "k"}, {"kind": "held"}], ids=str)
def test_a_filter_of_a_part_of_the_locks_says_so(
    site: Site, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    redlock.acquire("k", 30)
    redlock.acquire("k2", 30)
    monkeypatch.setattr(snapshots, "_KEPT", 1)
    assert ("The filter searches the 1 locks held longest." in site.shown(**query)) is bool(query)


def test_missed_ticks_and_actions_are_told(
    site: Site, redlock: TaskLock, three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in range(11):
        key = f"%beat:bank@0:by%20night:2020-01-01T{hour:02}:00:00Z:missed"
        redlock.reserve(key, 86_400, label="no quorum")
    with three.target().nodes() as nodes:
        action = Action("release", "alice@ops", "held by task-1@host", "k", "it hangs")
        with recorded(three.target(), nodes, action) as result:
            result.text = f"not released: {'x' * 200}"
    html = site.get().text
    text = text_of(html)
    assert text.count("Beat missed by night") == 10
    slot = datetime(2020, 1, 1, 10, tzinfo=timezone.utc).timestamp()
    ago = seconds(three.wall_us() / 1e6 - slot)
    assert f"Beat missed by night {ago} ago: 2020-01-01T10:00:00Z, no quorum" in text
    assert re.search(r" 0\.0 m?s ago alice@ops release not released: x+…x+ k held by task", text)
    [shown] = re.findall(r"not released: x+…x+", text)
    assert len(shown) == 160


@pytest.mark.parametrize(
    ("module", "settings", "name"),
    [
        (None, "", "proj"),
        ("bank", "", "bank"),
        ("bank", "shop.settings", "bank"),
        ("shop", "shop.settings", "shop"),
        ("shop", "shop.settings.production", "shop"),
        ("other", "shop.settings", "proj"),
    ],
)
def test_the_command_of_the_page_names_the_module_of_the_app(
    site: Site, bank: Celery, monkeypatch: pytest.MonkeyPatch,
    module: str | None, settings: str, name: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", settings)
    for one in ("bank", "shop", "other"):
        monkeypatch.setitem(sys.modules, one, ModuleType(one))
    if module:
        sys.modules[module].__dict__["celery_app"] = bank
    assert f"celery -A {name} redlock web" in site.shown()


@pytest.mark.parametrize("page", ["", "lock/", "release/", "end/"])
def test_a_setting_that_can_not_be_used_is_told(site: Site, bank: Celery, page: str) -> None:
    bank.conf.redlock_node_timeout = "soon"
    assert "redlock_node_timeout" in site.shown(page, key="k")


# --- one lock -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "links"),
    [
        ((), []),
        (("release_lock",), ["release"] * 3),
        (("end_run",), ["end"]),
        (("release_lock", "end_run"), ["end"] + ["release"] * 3),
    ],
)
def test_a_lock_has_the_links_that_its_viewer_may_follow(
    site: Site, redlock: TaskLock, permissions: tuple[str, ...], links: list[str]
) -> None:
    redlock.acquire("k", 30, label="task-1")
    redlock.reserve("k%next", 30, label="task-2")
    redlock.mark_done("k", "task-3/0/abc")
    site.as_("view_lock", *permissions)
    html = site.get("lock/", key="k").text
    assert sorted(re.findall(f'href="{PAGES}(release|end)/', html)) == links
    assert "<title>k |" in html
    text = text_of(html)
    for shown in ("held 0.0 s", "task-2@", "Worker: celery@vm (pid 7)", "A new call now: task-1"):
        assert shown in text
    assert "arguments:" not in text


def test_a_page_without_a_key_is_of_none(site: Site) -> None:
    assert "A new call now: it acquires the lock" in site.shown("lock/")
    assert "<title> |" in site.get("lock/").text
    for page, words in (("release/", "'' is not released"), ("end/", "under '': nobody holds it.")):
        assert words in site.shown(page)
    assert "'' is not released" in site.sent("release/")
    assert "'': Not ended: nobody holds it." in site.sent("end/")


def test_a_reservation_has_no_run_to_end(site: Site, redlock: TaskLock) -> None:
    redlock.reserve("k", 30, label="task-1")
    assert "End the run" not in site.shown("lock/", key="k")
    assert "free" in site.shown("lock/", key="other")


# --- release --------------------------------------------------------------------------------------


def test_a_lock_is_released_after_a_confirmation(
    site: Site, redlock: TaskLock, three: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    lease = redlock.acquire("k", 30, label="task-1")
    text = site.shown("release/", key="k")
    assert "Release k?" in text
    assert "held by task-1@" in text
    assert ", held 0.0 s, on 3/3 nodes; expires in 30.0 s." in text
    assert "Consequence: its task may be running" in text
    assert three.holders() == [lease.owner] * 3
    form = site.form("release/", key="k")
    assert form["done"] == ""
    assert "'k' is released." in site.sent("release/", **form, reason="it hangs")
    assert three.holders() == [None] * 3
    with three.target().nodes() as nodes:
        [action], _ = read_log(three.target(), nodes)
    assert (action.result, action.reason) == ("released", "it hangs")
    assert action.author == f"alice in the admin of {operator()}"
    lines = [one.getMessage() for one in caplog.records if one.name == admin.__name__]
    assert lines == [f"lock released in the admin key=k id={form['expect']} user=7"]


@pytest.mark.parametrize("expect", [None, "0123456789ab"])
def test_the_lock_of_another_holder_is_not_released(
    site: Site, redlock: TaskLock, three: Operated, expect: str | None
) -> None:
    lease = redlock.acquire("k", 30)
    form = {"key": "k"} | ({"expect": expect} if expect else {})
    words = "'k' is not released: it has another holder, or none."
    assert words in site.sent("release/", **form)
    assert three.holders() == [lease.owner] * 3
    form = site.form("release/", key="k")
    redlock.release(lease)
    assert words in site.sent("release/", **form)
    assert words in site.shown("release/", key="k")


def test_a_done_mark_is_deleted_alone(site: Site, redlock: TaskLock, three: Operated) -> None:
    lease = redlock.acquire("k", 30)
    redlock.mark_done("k", "task-1/0/abc")
    form = site.form("release/", key="k", done="task-1/0/abc")
    assert form["done"] == "task-1/0/abc"
    assert "'k' is released." in site.sent("release/", **form)
    assert three.holders() == [lease.owner] * 3
    assert "task-1" not in site.shown("lock/", key="k")
    with three.target().nodes() as nodes:
        [action], _ = read_log(three.target(), nodes)
    assert action.reason == ""


def test_a_release_without_a_quorum_is_an_error(
    site: Site, redlock: TaskLock, three: Operated
) -> None:
    redlock.acquire("k", 30)
    form = site.form("release/", key="k")
    three[0].is_up = three[1].is_up = False
    # As Django shows a message: with a capital letter.
    assert "Cannot release 'k': 0 of 3 nodes answered" in site.sent("release/", **form)


# --- end of a run ---------------------------------------------------------------------------------


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Order]]:
    """Whose run was to be ended, and how; the reason is what becomes of it."""
    given: list[tuple[str, Order]] = []

    def end(
        _target: Any, _nodes: Any, lock: Lock, order: Order, sleep: Callable[[float], None]
    ) -> Ending:
        sleep(1.0)
        given.append((lock.id, order))
        if order.reason == "unreachable":
            raise RedlockError("the workers could not be asked")
        is_ended = order.reason != "goes on"
        return Ending("Ended: nobody has it" if is_ended else "Still held\x1b", is_ended)

    monkeypatch.setattr(ending, "end", end)
    return given


@pytest.mark.parametrize(
    ("reason", "signal", "says", "level"),
    [
        ("it hangs", "KILL", "'k': Ended: nobody has it.", "success"),
        ("", None, "'k': Ended: nobody has it.", "success"),
        ("goes on", "TERM", "'k': Still held\x1b.", "error"),
        ("unreachable", "TERM", "the workers could not be asked", "error"),
    ],
)
def test_a_run_is_ended_after_a_confirmation(
    site: Site, redlock: TaskLock, orders: list[tuple[str, Order]],
    caplog: pytest.LogCaptureFixture, reason: str, signal: str | None, says: str, level: str,
) -> None:  # fmt: skip
    redlock.acquire("k", 30, label="task-1")
    html = site.get("end/", key="k").text
    text = text_of(html)
    assert "End the run that holds k?" in text
    assert "Consequence: its run is ended where it runs." in text
    assert ", held 0.0 s, on 3/3 nodes; expires in 30.0 s." in text
    assert re.findall("<option>(.*?)</option>", html) == ["TERM", "KILL"]
    assert orders == []
    form = site.form("end/", key="k") | ({"reason": reason} if reason else {})
    response = site.post("end/", **form, **({"signal": signal} if signal else {}))
    assert (response.status_code, response.url) == (302, PAGES)
    shown = unescape(site.get().text)
    assert re.search(f'<li class="{level}">{re.escape(says)}</li>', shown, re.IGNORECASE)
    author = f"alice in the admin of {operator()}"
    assert orders == [(form["expect"], Order(author, reason, signal or "TERM"))]
    lines = [one.getMessage() for one in caplog.records if one.name == admin.__name__]
    outcome = says[5:-1].replace("\x1b", "\\x1b")
    line = f"run ordered to end in the admin key=k id={form['expect']} user=7 outcome={outcome}"
    assert lines == ([] if reason == "unreachable" else [line])


def test_no_run_is_ended_where_another_holds_the_lock(
    site: Site, redlock: TaskLock, orders: list[tuple[str, Order]],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    lease = redlock.acquire("k", 30, label="task-1")
    form = site.form("end/", key="k")
    assert "another holder by now" in site.sent("end/", key="k")
    outcome = "Not ended: it has another holder by now"
    line = f"run ordered to end in the admin key=k id= user=7 outcome={outcome}"
    assert [one.getMessage() for one in caplog.records if one.name == admin.__name__] == [line]
    redlock.release(lease)
    assert "'k': Not ended: nobody holds it." in site.sent("end/", **form)
    assert "No run to end under 'k': nobody holds it." in site.shown("end/", key="k")
    assert orders == []
