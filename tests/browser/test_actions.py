"""The actions of operators in a real browser: a run that is ended, and what was done."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.operate.operator_log import Action, recorded
from celery_redlock.operate.target import target_of_app
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.chromium import press, set_scheme, set_size, too_wide
from tests.support.eventually import eventually
from tests.support.processes.project import Project

from .conftest import Serve
from .test_page import ENTER, LONG, TAB, TOKEN, brightness, click, colours, text

VIEW_TOKEN = "another-that-nobody-guesses"  # noqa: S105
FITS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
_FOCUSED = (
    "const one = document.activeElement;"
    "return [one.innerText, one.name, getComputedStyle(one).outlineStyle]"
)
BUTTONS = (
    "return [...document.querySelectorAll('button:not(.copy), .button')].map(one => one.innerText)"
)


def log_in(chromium: Any, url: str, token: str) -> None:
    chromium.get(url)
    chromium.find_element("name", "token").send_keys(token)
    click(chromium, "Log in")
    eventually(lambda: "Log out" in text(chromium))


def tab_to(chromium: Any, what: str) -> None:
    """Press Tab until the link, button or field with this text or name has the focus."""
    for _ in range(40):
        press(chromium, TAB)
        *names, outline = chromium.execute_script(_FOCUSED)
        if what in names:
            assert outline == "solid", what
            return
    raise AssertionError(f"{what} is not reached by keyboard")


def check_that_it_fits(chromium: Any, what: str) -> None:
    """Check the page that is shown, at both widths and in both colours."""
    seen = {}
    for width, scheme in FITS:
        set_size(chromium, width, 900)
        set_scheme(chromium, scheme)
        assert too_wide(chromium) == [], (what, width)
        seen[scheme] = colours(chromium)
    assert brightness(seen["light"]["back"]) > brightness(seen["dark"]["back"])
    set_size(chromium, 1280, 900)


def test_by_keyboard_the_run_of_a_worker_is_ended(
    chromium: Any, serve: Serve, project: Project
) -> None:
    project.start_worker(concurrency=2)
    result = project.tasks.late.delay("stuck", "never")
    project.run_of(result.id)
    url = serve(token=TOKEN, project=project)
    log_in(chromium, url, TOKEN)
    key = f"{project.tasks.late.name}:stuck"
    chromium.get(f"{url}lock?key={key}")
    tab_to(chromium, "End the run …")
    press(chromium, ENTER)
    eventually(lambda: "Consequence:" in text(chromium))
    tab_to(chromium, "reason")
    press(chromium, "it hangs")
    tab_to(chromium, "signal")
    press(chromium, "K")
    tab_to(chromium, "End it")
    press(chromium, ENTER)
    eventually(lambda: "Ended: nobody has the lock now." in text(chromium))
    assert not project.is_held(key)
    eventually(lambda: result.state == "REVOKED")
    click(chromium, "All locks")
    eventually(lambda: "it hangs" in text(chromium))
    assert "Ended: nobody has the lock now" in text(chromium)
    assert [line for line in chromium.get_log("browser") if line["level"] == "SEVERE"] == []


@pytest.mark.long
def test_the_end_of_a_run_fits_a_phone_in_both_colours(
    chromium: Any, serve: Serve, project: Project
) -> None:
    redlock_of(project.app).acquire(LONG, 600, label="5b2c1f0e-" * 10)
    url = serve(token=TOKEN, view_token=VIEW_TOKEN, project=project)
    chromium.get(url)
    check_that_it_fits(chromium, "login")
    log_in(chromium, url, TOKEN)
    for path in (f"lock?key={LONG}", f"release?key={LONG}", f"end?key={LONG}"):
        chromium.get(url + path)
        check_that_it_fits(chromium, path)
    # Nobody runs it.
    click(chromium, "End it")
    eventually(lambda: "Still held: no worker has answered" in text(chromium))
    check_that_it_fits(chromium, "the outcome")


@pytest.mark.long
def test_the_actions_of_operators_fit_a_phone_in_both_colours(
    chromium: Any, serve: Serve, project: Project
) -> None:
    url = serve(token=TOKEN, view_token=VIEW_TOKEN, project=project)
    log_in(chromium, url, VIEW_TOKEN)
    assert "None. A release, an ended run and an admitted node" in text(chromium)
    check_that_it_fits(chromium, "no actions")
    target, author = target_of_app(project.app), "the page of " + "alice" * 20 + "@ops"
    for key, reason in ((LONG, "it hangs " * 40), ("", "x" * 400)):
        action = Action("end", author, f"held by {'5b2c1f0e-' * 40}", key, reason)
        with target.nodes() as nodes, recorded(target, nodes, action) as result:
            result.text = "Still held: " + "y" * 300
    eventually(lambda: "it hangs" in text(chromium))
    check_that_it_fits(chromium, "actions")


@pytest.mark.long
def test_who_may_only_look_has_no_button_but_to_log_out(
    chromium: Any, serve: Serve, project: Project
) -> None:
    redlock: TaskLock = redlock_of(project.app)
    redlock.acquire("bank.sync:42", 600, label="task-1")
    url = serve(token=TOKEN, view_token=VIEW_TOKEN, project=project)
    log_in(chromium, url, VIEW_TOKEN)
    chromium.get(f"{url}lock?key=bank.sync:42")
    assert chromium.execute_script(BUTTONS) == ["Log out"]
    seen = text(chromium)
    assert "read-only" in seen
    assert "log in with the token of --token" in seen
    check_that_it_fits(chromium, "lock of a viewer")
    chromium.get(f"{url}end?key=bank.sync:42")
    assert "You may only look" in text(chromium)
