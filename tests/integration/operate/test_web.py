"""`celery-redlock web` on real servers, behind a proxy and with very many locks."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_redlock.testing import Servers
from tests.support.eventually import PATIENCE
from tests.support.root import ROOT

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
TLS = {"X-Forwarded-Proto": "https"}


@contextmanager
def served(urls: list[str], *words: str, token: str = "") -> Iterator[int]:
    """Start `celery-redlock web`, yield its port, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from celery_redlock.cli.alone import main; main()",
         "--no-restart-guard", "--node-timeout", "10", "web", "--port", "0", *words],
        env=os.environ | {"REDLOCK_NODES": " ".join(urls), "REDLOCK_WEB_TOKEN": token} if token
        else os.environ | {"REDLOCK_NODES": " ".join(urls)},
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        with process.stdout as said:
            yield int(said.readline().split()[4].rstrip("/").rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "headers", "is_secure"),
    [
        (["--trusted-proxy", "127.0.0.1"], TLS, True),
        (["--trusted-proxy", "127.0.0.1"], {}, False),
        pytest.param(["--trusted-proxy", "10.0.0.7"], TLS, False, marks=pytest.mark.long),
        pytest.param([], TLS, False, marks=pytest.mark.long),
    ],
    ids=["TLS", "no TLS", "another address", "no proxy"],
)
def test_only_a_trusted_proxy_makes_the_cookie_secure(
    five: Servers, words: list[str], headers: dict[str, str], *, is_secure: bool
) -> None:
    with served(five.urls, *words, token=TOKEN) as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/login", headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310  # ours
            parts = answer.headers["Set-Cookie"].split("; ")
    assert ("Secure" in parts) is is_secure
    assert {"HttpOnly", "SameSite=Strict"} <= set(parts)
