"""A headless Chromium with its driver, if the machine has both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 180.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--hide-scrollbars",
)  # fmt: skip

_TOO_WIDE = """
const most = document.documentElement.clientWidth;
const isSeen = one => !one.closest('.hidden-text, thead, .line') && one.getClientRects().length;
return [...document.querySelectorAll('main, main *')].filter(isSeen)
  .filter(one => one.getBoundingClientRect().right > most + 1)
  .map(one => one.tagName + ' ' + one.textContent.trim().slice(0, 40))
  .concat(document.documentElement.scrollWidth > most ? ['page'] : []);
"""


@contextmanager
def start_chromium() -> Iterator[Any]:
    """Start a browser, and quit it in the end.

    Raises:
        FileNotFoundError: The machine has no Chromium with its chromedriver.
    """
    from selenium import webdriver  # noqa: PLC0415  # it comes with the extra dev

    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        raise FileNotFoundError("no Chromium with its chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in _FLAGS:
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=driver)
    chromium = webdriver.Chrome(options=options, service=service)
    chromium.set_page_load_timeout(PATIENCE_S)
    try:
        yield chromium
    finally:
        chromium.quit()


def press(chromium: Any, *keys: str) -> None:
    """Press keys. They reach what has the focus, also where a page has just replaced it."""
    from selenium.webdriver import ActionChains  # noqa: PLC0415

    ActionChains(chromium).send_keys(*keys).perform()


def focused(chromium: Any, fact: str) -> Any:
    """Return a fact about what has the focus, as in `focused(chromium, "tagName")`."""
    return chromium.execute_script(f"return document.activeElement.{fact}")


def set_scheme(chromium: Any, scheme: str) -> None:
    """Have pages seen in a colour scheme, "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def set_size(chromium: Any, width: int, height: int) -> None:
    """Give the window a size, in CSS pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def too_wide(chromium: Any) -> list[str]:
    """Return what of a page is beyond the right edge of the window, by its first words."""
    return list(chromium.execute_script(_TOO_WIDE))
