"""A headless Chromium, and the page as the command serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from celery_redlock.testing import Servers
from tests.support.chromium import start_chromium
from tests.support.requirements import unmet
from tests.support.root import ROOT


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Any]:
    pytest.importorskip("selenium.webdriver")
    with ExitStack() as stack:
        try:
            chromium = stack.enter_context(start_chromium())
        except FileNotFoundError as error:
            unmet(str(error), "browser")
        yield chromium


@pytest.fixture
def chromium(_chromium: Any) -> Any:
    """A browser without cookies, in light colours, as wide as a desktop's."""
    _chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    _chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    _chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return _chromium


Serve = Callable[..., str]


@pytest.fixture
def serve(five: Servers) -> Iterator[Serve]:
    """Start `celery-redlock web` on the five servers and return its URL: `serve(token="")`."""
    with ExitStack() as stack:

        def start(token: str = "") -> str:
            more = {"REDLOCK_NODES": " ".join(five.urls), "PYTHONPATH": str(ROOT)}
            if token:
                more["REDLOCK_WEB_TOKEN"] = token
            command = "from celery_redlock.cli.alone import main; main()"
            # Patient: the machine may be slow.
            options = ("--no-restart-guard", "--node-timeout", "10", "web", "--port", "0")
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", command, *options],
                env=os.environ | more, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout
            stack.enter_context(closing(process.stdout))
            stack.callback(process.wait)
            stack.callback(process.kill)
            said = process.stdout.readline()
            return said.split()[4]

        yield start
