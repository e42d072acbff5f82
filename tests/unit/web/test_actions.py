"""The end of a run on the page, and the actions of operators that it shows."""

from __future__ import annotations

import html
import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from celery import Celery
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from celery_redlock.operate import ending, operator_log
from celery_redlock.operate.ending import Ending, Order
from celery_redlock.operate.locks import Lock
from celery_redlock.operate.operator_log import Action, recorded
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.web import actions
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active

from .conftest import ORIGIN, TOKEN, VIEW_TOKEN, NewClient, log_in
from .test_page import text_of

ENDED = Ending("Ended: nobody has the lock now", is_ended=True)


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app whose worker runs `task-1`."""
    app = Celery("bank", broker="memory://", set_as_current=False)
    Told(app, monkeypatch, {"celery@vm": [active("task-1")]})
    return app


@pytest.fixture
def operator(new_client: NewClient, bank: Celery) -> FlaskClient:
    """Requests of somebody who may act, to a page with an app."""
    client = new_client(app=bank, token=TOKEN, view_token=VIEW_TOKEN)
    log_in(client, TOKEN)
    return client


@pytest.fixture
def viewer(operator: FlaskClient) -> FlaskClient:
    """Requests of somebody who may only look, to the same page."""
    client = operator.application.test_client()
    log_in(client, VIEW_TOKEN)
    return client


class Endings:
    """Runs that were to be ended, and what becomes of each."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, Order]] = []
        self.becomes: Ending | RedlockError = ENDED

    def end(self, _target: Any, _nodes: Any, lock: Lock, order: Order, _sleep: Any) -> Ending:
        self.orders.append((lock.id, order))
        if isinstance(self.becomes, RedlockError):
            raise self.becomes
        return self.becomes


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> Endings:
    endings = Endings()
    monkeypatch.setattr(ending, "end", endings.end)
    monkeypatch.setattr(actions, "operator", lambda: "alice@ops")
    return endings


def form_in(page: TestResponse) -> dict[str, str]:
    """Return what the form of a confirmation sends as it is shown."""
    form = page.text.split("<main ")[1]
    hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    in_address = parse_qsl(urlsplit(html.unescape(form.split('action="')[1].split('"')[0])).query)
    return {name: html.unescape(value) for name, value in hidden} | dict(in_address)


def form_of(client: FlaskClient) -> dict[str, str]:
    """Return what the form of the end of the run that holds `k` sends."""
    return form_in(client.get("/end?key=k"))


def test_a_run_is_ended_after_a_confirmation(
    redlock: TaskLock, operator: FlaskClient, endings: Endings
) -> None:
    redlock.acquire("k", 30, label="task-1")
    [link] = re.findall(r'href="(/end\?[^"]+)"', operator.get("/lock?key=k").text)
    shown = operator.get(html.unescape(link)).text
    assert "Consequence: its run is ended where it runs." in text_of(shown)
    assert re.findall(r"<option>(\w+)</option>", shown) == ["TERM", "KILL"]
    assert endings.orders == []
    form = form_of(operator) | {"reason": "it hangs", "signal": "KILL"}
    response = operator.post("/end", data=form, headers=ORIGIN)
    assert response.status_code == 200
    assert "Ended: nobody has the lock now." in text_of(response.text)
    order = Order("the page of alice@ops", "it hangs", "KILL")
    assert endings.orders == [(form["expect"], order)]


def test_without_a_choice_the_signal_is_term_and_no_reason_is_said(
    redlock: TaskLock, operator: FlaskClient, endings: Endings
) -> None:
    redlock.acquire("k", 30, label="task-1")
    operator.post("/end", data=form_of(operator), headers=ORIGIN)
    [(_, order)] = endings.orders
    assert order == Order("the page of alice@ops", "", "TERM")


@pytest.mark.parametrize(
    "outcome",
    [
        "Not ended: worker celery@vm: it runs in the body of another task, t-9: end that",
        "Not known to have ended: 1 of 3 nodes answered",
        "Still held: no worker has answered that it runs it. <b>",
    ],
)
def test_a_run_that_goes_on_is_told_in_the_words_of_the_command(
    redlock: TaskLock, operator: FlaskClient, endings: Endings, outcome: str
) -> None:
    redlock.acquire("k", 30, label="task-1")
    endings.becomes = Ending(outcome)
    response = operator.post("/end", data=form_of(operator), headers=ORIGIN)
    assert response.status_code == 409
    assert f"{outcome}." in text_of(response.text)
    assert "<b>" not in response.text


def test_workers_that_can_not_be_asked_are_an_error(
    redlock: TaskLock, operator: FlaskClient, endings: Endings
) -> None:
    redlock.acquire("k", 30, label="task-1")
    endings.becomes = RedlockError("the broker has no remote control")
    response = operator.post("/end", data=form_of(operator), headers=ORIGIN)
    assert response.status_code == 503
    assert "the broker has no remote control" in response.text


def test_the_run_of_another_holder_is_not_ended(
    redlock: TaskLock, operator: FlaskClient, endings: Endings
) -> None:
    lease = redlock.acquire("k", 30, label="task-1")
    form = form_of(operator)
    redlock.release(lease)
    response = operator.post("/end", data=form, headers=ORIGIN)
    assert response.status_code == 409
    assert "Not ended: nobody holds it." in text_of(response.text)
    redlock.acquire("k", 30, label="task-1")
    for expected in (form, {name: form[name] for name in ("csrf", "key")}):
        response = operator.post("/end", data=expected, headers=ORIGIN)
        assert response.status_code == 409
        assert "Not ended: it has another holder by now." in text_of(response.text)
    assert endings.orders == []


@pytest.mark.parametrize("signal", ["", "HUP", "term"])
def test_an_unknown_signal_is_refused(
    redlock: TaskLock, operator: FlaskClient, endings: Endings, signal: str
) -> None:
    redlock.acquire("k", 30, label="task-1")
    form = form_of(operator) | {"signal": signal}
    response = operator.post("/end", data=form, headers=ORIGIN)
    assert response.status_code == 409
    assert "Not ended: the signal must be one of TERM, KILL." in text_of(response.text)
    assert endings.orders == []


@pytest.mark.parametrize(
    ("key", "is_period", "why"),
    [
        ("k", False, "it is a reservation, whose message waits"),
        ("k", True, "it is the period of a throttle"),
        ("free", False, "nobody holds it"),
    ],
)
def test_where_no_run_holds_it_there_is_nothing_to_end(
    redlock: TaskLock, operator: FlaskClient, key: str, is_period: bool, why: str
) -> None:
    redlock.reserve("k", 60, label="task-1", is_period=is_period)
    assert "End the run" not in operator.get(f"/lock?key={key}").text
    response = operator.get(f"/end?key={key}")
    assert response.status_code == 404
    assert f"No run to end under '{key}': {why}." in html.unescape(response.text)


def test_without_an_app_no_run_can_be_ended(redlock: TaskLock, new_client: NewClient) -> None:
    redlock.acquire("k", 30, label="task-1")
    client = new_client(token=TOKEN)
    log_in(client, TOKEN)
    shown = client.get("/lock?key=k").text
    assert "Release …" in shown
    assert "End the run" not in shown
    response = client.get("/end?key=k")
    assert response.status_code == 404
    assert "without an app, no worker can be told" in response.text
    form = form_in(client.get("/release?key=k"))
    response = client.post("/end", data=form, headers=ORIGIN)
    assert response.status_code == 409
    assert "Not ended: without an app, no worker can be told." in text_of(response.text)


def test_a_viewer_has_no_button_to_end_and_sees_the_command(
    redlock: TaskLock, viewer: FlaskClient, endings: Endings
) -> None:
    redlock.acquire("k", 30, label="task-1")
    shown = viewer.get("/lock?key=k").text
    assert "End the run" not in shown
    assert "<code>celery -A bank redlock end k</code>" in shown
    assert viewer.post("/end", data={"key": "k"}, headers=ORIGIN).status_code == 403
    assert endings.orders == []


# ---- what operators have done


def record(three: Operated, action: Action, result: str) -> None:
    with three.target().nodes() as nodes, recorded(three.target(), nodes, action) as told:
        told.text = result


@pytest.fixture
def _clock(three: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: three.wall_us() / 1e6)
    monkeypatch.setattr(operator_log, "time", clock)


@pytest.mark.usefixtures("_clock")
def test_actions_are_listed_the_latest_first(three: Operated, reader: FlaskClient) -> None:
    first = Action("release", "alice@ops", "held by t-1 (id 0)", "bank.sync:<i>", "<b>hangs</b>")
    record(three, first, "released")
    three.sleep(5.0)
    record(three, Action("admit", "bob@ops", "127.0.0.1:7001"), "admitted")
    three.sleep(4.0)
    shown = reader.get("/").text
    assert "<i>" not in shown
    assert "<b>" not in shown
    seen = text_of(shown).partition("Operators' actions")[2]
    later = seen.index("4.0 s ago bob@ops admit admitted 127.0.0.1:7001 -")
    assert later < seen.index("9.0 s ago alice@ops release released bank.sync:<i>")
    assert "held by t-1 (id 0) <b>hangs</b>" in seen
    assert "/lock?key=bank.sync:%3Ci%3E" in shown


@pytest.mark.usefixtures("_clock")
def test_the_latest_twenty_actions_are_shown(three: Operated, reader: FlaskClient) -> None:
    for number in range(22):
        record(three, Action("release", "alice@ops", "x", f"k-{number}"), "released")
        three.sleep(0.1)
    shown = text_of(reader.get("/live").text)
    assert "The latest 20; celery -A bank redlock log shows all." in shown
    assert shown.count("alice@ops release released") == 20
    assert "k-21" in shown
    assert "k-1 " not in shown


def test_without_actions_the_page_says_so(three: Operated, reader: FlaskClient) -> None:
    assert "Operators' actions None. A release, an ended run" in text_of(reader.get("/").text)
    three[0].is_up = False
    three.sleep(60.0)
    assert "Operators' actions None. A release, an ended run" in text_of(reader.get("/").text)


def test_if_too_few_nodes_tell_actions_the_page_says_so(
    three: Operated, reader: FlaskClient
) -> None:
    for number in (0, 1):
        three[number].refused["LRANGE"] = "NOPERM no permission to run the 'lrange' command"
    shown = text_of(reader.get("/").text)
    assert "Some may be missing: 127.0.0.1:7000 is left out: NOPERM" in shown
    assert "None. A release" not in shown
