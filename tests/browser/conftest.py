"""A headless Chromium, and the page as the command serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from celery_redlock.testing import Servers
from tests.support.requirements import unmet
from tests.support.root import ROOT

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking",
)  # fmt: skip
_PATIENCE_S = 60.0


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        unmet("no Chromium with its chromedriver on this machine", "browser")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in _FLAGS:
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=driver)
    chromium = webdriver.Chrome(options=options, service=service)
    chromium.set_page_load_timeout(_PATIENCE_S)
    try:
        yield chromium
    finally:
        chromium.quit()


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
