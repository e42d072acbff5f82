"""The command `redlock web`, up to the page that it serves."""

from __future__ import annotations

import html
import re
import shlex
import socket
import sys

import pytest
from celery import Celery
from flask import Flask

from celery_redlock.operate.incidents import Incidents
from celery_redlock.web import server
from tests.support.processes.ran import Run
from tests.unit.web.conftest import log_in


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Flask]:
    """The pages that would be served."""
    pages: list[Flask] = []

    def serve(page: Flask, listener: socket.socket, trusted_proxy: str | None = None) -> None:
        pages.append(page)
        listener.close()

    monkeypatch.setattr(server, "serve", serve)
    return pages


def test_it_listens_at_loopback_and_only_shows(run: Run, served: list[Flask]) -> None:
    ran = run("web", "--port", "0")
    assert ran.output.startswith("The page is at http://127.0.0.1:")
    [page] = served
    client = page.test_client()
    shown = client.get("/").text
    assert "3 of 3 nodes vote" in shown
    assert "Without an app" in shown
    assert client.post("/release").status_code == 405
    line = re.findall("<code>(.*)</code>", client.get("/lock?key=it's").text)
    words = shlex.split(html.unescape(line[0]))
    assert (words[0], words[-2:]) == ("celery-redlock", ["release", "it's"])


def test_a_token_from_the_environment_asks_for_a_login(
    run: Run, served: list[Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDLOCK_WEB_TOKEN", "a-token-that-nobody-guesses")
    run("web", "--port", "0", "--allow-host", "locks.example")
    client = served[0].test_client()
    assert client.get("/", headers={"Host": "locks.example"}).status_code == 302


def test_with_only_a_view_token_nobody_may_act(
    run: Run, served: list[Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDLOCK_WEB_VIEW_TOKEN", "another-that-nobody-guesses")
    run("web", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    client = served[0].test_client()
    assert client.get("/").status_code == 302
    assert log_in(client, "another-that-nobody-guesses").status_code == 302
    assert "read-only" in client.get("/").text


def test_the_token_acts_and_the_view_token_looks(run: Run, served: list[Flask]) -> None:
    tokens = {"may act": "a-token-that-nobody-guesses", "read-only": "another-that-nobody-guesses"}
    run("web", "--port", "0", "--token", tokens["may act"], "--view-token", tokens["read-only"])
    for role, token in tokens.items():
        client = served[0].test_client()
        log_in(client, token)
        assert role in client.get("/").text


def test_with_an_app_its_events_are_received(
    run: Run, served: list[Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Incidents] = []

    def start(incidents: Incidents) -> None:
        started.append(incidents)

    monkeypatch.setattr(Incidents, "start", start)
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = ["redis://127.0.0.1:7000"]
    run("web", "--port", "0", app=app)
    assert len(started) == 1
    assert "not connected to the broker yet" in served[0].test_client().get("/").text


def test_others_can_not_reach_a_page_without_a_token(run: Run, served: list[Flask]) -> None:
    ran = run("web", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert ran.exit_code == 1
    assert "Error: 0.0.0.0 can be reached from other machines: give a token" in ran.output
    assert not served


@pytest.mark.parametrize("proxy", ["localhost", "foo", "*", "10.0.0.0/8", ""])
def test_a_trusted_proxy_that_is_no_address_is_refused(
    run: Run, served: list[Flask], proxy: str
) -> None:
    ran = run("web", "--port", "0", "--trusted-proxy", proxy)
    assert ran.exit_code == 2
    assert f"{proxy!r} is not an IP address such as 127.0.0.1 or ::1." in ran.output
    assert not served
    assert run("web", "--port", "0", "--trusted-proxy", "127.0.0.1").exit_code == 0


def test_without_flask_the_error_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "celery_redlock.web.page", raising=False)
    monkeypatch.setitem(sys.modules, "flask", None)
    monkeypatch.delitem(sys.modules, "celery_redlock.web.guard", raising=False)
    ran = run("web")
    assert ran.exit_code == 1
    assert "pip install 'celery-redlock[web]'" in ran.output
