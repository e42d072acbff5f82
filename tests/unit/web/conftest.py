"""The page on simulated nodes, asked in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from flask import Flask
from flask.testing import FlaskClient
from jinja2 import FileSystemBytecodeCache
from werkzeug.test import TestResponse

from celery_redlock.operate.incidents import Incidents
from celery_redlock.redlock import Redlock
from celery_redlock.web.guard import Access
from celery_redlock.web.page import new_page
from tests.support.fakes.operated import Operated
from tests.support.processes.project import celery_to_itself

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
VIEW_TOKEN = "another-that-nobody-guesses"  # noqa: S105
ORIGIN = {"Origin": "http://localhost"}


@pytest.fixture(scope="session", autouse=True)
def _templates_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test makes a page of its own, and compiling its templates takes most of the time."""
    compiled = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flask, "jinja_options", {"bytecode_cache": compiled})
        yield


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Operated:
    return Operated(3, monkeypatch)


@pytest.fixture
def redlock(three: Operated) -> Redlock:
    """A lock on the three nodes."""
    return three.redlock()


NewClient = Callable[..., FlaskClient]


@pytest.fixture
def new_client(three: Operated) -> NewClient:
    """Return a browser's requests to the page: `new_client(token=…, hosts=…)`."""

    def new(
        app: Celery | None = None,
        incidents: Incidents | None = None,
        *,
        shows_arguments: bool = False,
        **access: Any,
    ) -> FlaskClient:
        target = three.target(app=app, shows_arguments=shows_arguments)
        page = new_page(
            target, Access(**access), incidents, command="celery -A bank redlock",
            now=lambda: three.wall_us() / 1e6,
        )  # fmt: skip
        return page.test_client()

    return new


@pytest.fixture
def reader(new_client: NewClient) -> FlaskClient:
    """Requests to a page without a token."""
    return new_client()


@pytest.fixture
def operator(new_client: NewClient) -> FlaskClient:
    """Requests of somebody who has logged in."""
    client = new_client(token=TOKEN)
    assert log_in(client, TOKEN).status_code == 302
    return client


@pytest.fixture
def viewer(new_client: NewClient) -> FlaskClient:
    """Requests of somebody who has logged in with the token that only looks."""
    client = new_client(token=TOKEN, view_token=VIEW_TOKEN)
    assert log_in(client, VIEW_TOKEN).status_code == 302
    return client


def csrf_in(response: TestResponse) -> str:
    """Return the secret in the forms of a page."""
    return str(re.findall(r'name="csrf" value="([^"]+)"', response.text)[0])


def log_in(client: FlaskClient, token: str) -> TestResponse:
    """Log in as a browser does."""
    form = {"token": token, "csrf": csrf_in(client.get("/login"))}
    return client.post("/login", data=form, headers=ORIGIN)


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests() -> Iterator[None]:
    with celery_to_itself():
        yield
