"""A headless Chromium, and the page as the command serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.testing import Server, Servers
from tests.support.chromium import start_chromium
from tests.support.processes.commands import celery_of, environment_of
from tests.support.processes.project import Project
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
    """A browser without cookies and log, in light colours, as wide as a desktop's."""
    _chromium.get("about:blank")  # the page of the test before may still ask its server
    _chromium.get_log("browser")
    _chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    _chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    _chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return _chromium


Serve = Callable[..., str]


@pytest.fixture
def serve(five: Servers) -> Iterator[Serve]:
    """Start `redlock web` on the five servers and return its URL: `serve(token="", view_token="")`.

    With a `project`, it is `celery -A <project> redlock web`.
    """
    with ExitStack() as stack:

        def start(token: str = "", view_token: str = "", project: Project | None = None) -> str:
            given = {"REDLOCK_WEB_TOKEN": token, "REDLOCK_WEB_VIEW_TOKEN": view_token}
            more = {name: one for name, one in given.items() if one}
            if project is not None:
                command = celery_of(project, "redlock", "web", "--port", "0")
                more |= environment_of(project)
            else:
                # Patient: the machine may be slow.
                options = ("--no-restart-guard", "--node-timeout", "10", "web", "--port", "0")
                main = "from celery_redlock.cli.alone import main; main()"
                command = [sys.executable, "-u", "-c", main, *options]
                more["REDLOCK_NODES"] = " ".join(five.urls)
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | more,
            )  # fmt: skip
            assert process.stdout
            stack.enter_context(closing(process.stdout))
            stack.callback(process.wait)
            stack.callback(process.kill)
            said = process.stdout.readline()
            return said.split()[4]

        yield start


@pytest.fixture
def project(five: Servers, tmp_path: Path) -> Iterator[Project]:
    """A project with locks on the five servers; its tasks wait for their gates."""
    module = "tests.integration.apps.endings"
    with (
        Server() as broker,
        Project(
            module, tmp_path, f"{broker.url}/0", f"{broker.url}/1", five, redlock_max_ttl=3600.0
        ) as project,
    ):
        yield project
