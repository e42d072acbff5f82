"""Requests that the page refuses."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.web.guard import Access

from .conftest import ORIGIN, TOKEN, VIEW_TOKEN, NewClient, csrf_in, log_in

PAGES = ("/", "/live", "/lock?key=k", "/release?key=k", "/end?key=k")
CHANGING = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8790",
        "127.0.0.1:8790",
        "[::1]:8790",
        "10.0.0.7",
        "redlock.me",
        "Redlock.me",
    ],
)
def test_a_name_of_the_page_is_accepted(host: str) -> None:
    assert Access(hosts=["redlock.me"]).is_host(host)
    assert Access(hosts=["Redlock.ME"]).is_host(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a@b:c"]
)
def test_a_foreign_name_is_refused(reader: FlaskClient, host: str) -> None:
    assert not Access(hosts=["redlock.me"]).is_host(host)
    response = reader.get("/", headers={"Host": host})
    assert response.status_code == 400
    assert "Locks" not in response.text


@pytest.mark.parametrize("path", [*PAGES, "/login", "/logout", "/static/page.css", "/nowhere"])
@pytest.mark.parametrize("method", CHANGING)
def test_without_a_token_nothing_changes_anything(
    reader: FlaskClient, path: str, method: str
) -> None:
    form = {"csrf": csrf_in(reader.get("/login"))}
    response = reader.open(path, method=method, data=form, headers=ORIGIN)
    assert response.status_code == 405
    assert "You may only look" in response.text
    assert "start this page with --token." in response.text


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("given", [{"token": TOKEN}, {"view_token": VIEW_TOKEN}], ids=str)
def test_with_a_token_nobody_else_sees_anything(
    new_client: NewClient, path: str, given: dict[str, str]
) -> None:
    response = new_client(**given).get(path)
    if path == "/live":
        assert response.status_code == 401
        assert "Log in again." in response.text
    else:
        assert (response.status_code, response.location) == (302, "/login")
    assert "Locks" not in response.text


@pytest.mark.parametrize("path", ["/release", "/end", "/", "/lock", "/nowhere"])
@pytest.mark.parametrize("method", CHANGING)
def test_the_view_token_changes_nothing(
    viewer: FlaskClient, redlock: TaskLock, path: str, method: str
) -> None:
    redlock.acquire("k", 30)
    operator = viewer.application.test_client()
    log_in(operator, TOKEN)
    form = form_of(operator, "k") | {"csrf": csrf_in(viewer.get("/lock?key=k"))}
    assert viewer.open(path, method=method, data=form, headers=ORIGIN).status_code == 403
    assert redlock.read_holder("k")


def test_the_view_token_sees_all_and_no_buttons(viewer: FlaskClient, redlock: TaskLock) -> None:
    redlock.acquire("k", 30)
    assert "read-only" in viewer.get("/").text
    shown = viewer.get("/lock?key=k").text
    assert "Release …" not in shown
    assert " release k</code>" in shown
    assert "log in with the token of --token (REDLOCK_WEB_TOKEN)" in shown
    assert re.findall(r"<button[^>]*>([^<]+)</button>", shown) == ["Log out"]


@pytest.mark.parametrize("path", ["/release?key=k", "/end?key=k"])
def test_a_viewer_is_told_which_token_is_needed(
    viewer: FlaskClient, new_client: NewClient, path: str
) -> None:
    only_view = new_client(view_token=VIEW_TOKEN)
    log_in(only_view, VIEW_TOKEN)
    for client, remedy in (
        (viewer, "log in with the token of --token (REDLOCK_WEB_TOKEN)."),
        (only_view, "start this page with --token."),
    ):
        for method in ("GET", "POST"):
            response = client.open(path, method=method)
            assert response.status_code == 403
            assert f"You may only look; to release locks and end runs, {remedy}" in response.text


def test_a_viewer_logs_in_again_to_act(viewer: FlaskClient) -> None:
    page = viewer.get("/")
    viewer.post("/logout", data={"csrf": csrf_in(page)}, headers=ORIGIN)
    assert viewer.get("/").status_code == 302
    log_in(viewer, TOKEN)
    assert "may act" in viewer.get("/").text


@pytest.mark.parametrize("wrong", ["", "a", TOKEN[:-1], TOKEN + "x", "ü" * 20])
def test_a_wrong_token_does_not_log_in(new_client: NewClient, wrong: str) -> None:
    client = new_client(token=TOKEN, view_token=VIEW_TOKEN)
    assert log_in(client, wrong).status_code == 403
    assert client.get("/").status_code == 302


def test_who_logs_out_sees_nothing_any_more(operator: FlaskClient) -> None:
    page = operator.get("/")
    assert page.status_code == 200
    operator.post("/logout", data={"csrf": csrf_in(page)}, headers=ORIGIN)
    assert operator.get_cookie("redlock") is None
    assert operator.get("/").status_code == 302


def test_a_login_begins_a_session_with_another_secret(new_client: NewClient) -> None:
    client = new_client(token=TOKEN)
    before = csrf_in(client.get("/login"))
    log_in(client, TOKEN)
    page = client.get("/")
    assert csrf_in(page) != before
    assert client.post("/logout", data={"csrf": before}, headers=ORIGIN).status_code == 403


def test_a_copy_of_the_cookie_ends_with_the_login(
    operator: FlaskClient, new_client: NewClient
) -> None:
    cookie = operator.get_cookie("redlock")
    assert cookie
    page = operator.get("/")
    operator.post("/logout", data={"csrf": csrf_in(page)}, headers=ORIGIN)
    operator.set_cookie("redlock", cookie.value)
    assert operator.get("/").status_code == 302


def test_of_many_logins_the_oldest_of_the_role_ends(
    new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_redlock.web.guard._MOST_LOGINS", 10)
    client = new_client(token=TOKEN, view_token=VIEW_TOKEN)
    log_in(client, TOKEN)
    viewer, others = (client.application.test_client() for _ in range(2))
    log_in(viewer, VIEW_TOKEN)
    for _ in range(10):
        log_in(others, VIEW_TOKEN)
    assert client.get("/").status_code == 200
    assert viewer.get("/").status_code == 302
    for _ in range(10):
        log_in(others, TOKEN)
    assert client.get("/").status_code == 302
    assert others.get("/").status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:8000"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://["},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/release", "/end", "/login", "/logout"])
def test_a_request_from_another_site_is_refused(
    operator: FlaskClient, redlock: TaskLock, path: str, origin: dict[str, str]
) -> None:
    redlock.acquire("k", 30)
    form = form_of(operator, "k") | {"token": TOKEN}
    response = operator.post(path, data=form, headers=origin)
    assert response.status_code == 403
    assert "The request comes from another site" in response.text
    assert redlock.read_holder("k")
    assert operator.get("/").status_code == 200


@pytest.mark.parametrize("csrf", [None, "", "guessed", "another session's"])
def test_a_form_of_another_session_is_refused(
    operator: FlaskClient, redlock: TaskLock, csrf: str | None
) -> None:
    redlock.acquire("k", 30)
    form = {**form_of(operator, "k"), "csrf": csrf}
    if csrf is None:
        del form["csrf"]
    elif csrf == "another session's":
        form["csrf"] = csrf_in(operator.application.test_client().get("/login"))
    response = operator.post("/release", data=form, headers=ORIGIN)
    assert response.status_code == 403
    assert "The form is not one of this session" in response.text
    assert redlock.read_holder("k")


def test_a_form_that_is_too_large_is_refused(operator: FlaskClient, redlock: TaskLock) -> None:
    redlock.acquire("k", 30)
    form = form_of(operator, "k") | {"reason": "x" * 64 * 1024}
    assert operator.post("/release", data=form, headers=ORIGIN).status_code == 413
    assert redlock.read_holder("k")


def test_the_cookie_is_kept_from_scripts_and_other_sites(new_client: NewClient) -> None:
    cookie = log_in(new_client(token=TOKEN), TOKEN).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert TOKEN not in cookie


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_over_tls_the_cookie_is_sent_over_tls_only(new_client: NewClient, scheme: str) -> None:
    response = new_client(token=TOKEN).get("/login", base_url=f"{scheme}://localhost")
    parts = response.headers["Set-Cookie"].split("; ")
    assert ("Secure" in parts) is (scheme == "https")


@pytest.mark.parametrize("path", ["/", "/lock?key=k", "/nowhere", "/static/live.js"])
def test_every_response_forbids_frames_and_what_is_not_its_own(
    reader: FlaskClient, path: str
) -> None:
    headers = reader.get(path, buffered=True).headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", PAGES[:3])
def test_no_page_needs_what_the_policy_forbids(
    reader: FlaskClient, redlock: TaskLock, path: str
) -> None:
    redlock.acquire("k", 30)
    html = reader.get(path).text
    assert "style=" not in html
    assert "onclick" not in html
    assert "<script>" not in html
    assert "http://" not in html
    assert "https://" not in html


def form_of(client: FlaskClient, key: str) -> dict[str, str]:
    """Return what the form of the confirmation sends."""
    page = client.get("/release", query_string={"key": key})
    return {"key": key, "csrf": csrf_in(page), "expect": page.text.split("(id ")[1].split(")")[0]}
