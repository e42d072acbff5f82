"""The page in a real browser. The tests are few, since each waits for a browser."""

from __future__ import annotations

from typing import Any

from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually

from .conftest import Serve

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
KEY = "bank.sync:<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


def text(chromium: Any) -> str:
    """Return what a reader sees."""
    return str(chromium.execute_script("return document.body.innerText"))


def click(chromium: Any, label: str) -> None:
    """Click the link or button of this text, in one step: the page replaces them meanwhile."""
    chromium.execute_script(
        "[...document.querySelectorAll('a, button')]"
        ".find(one => one.innerText.trim() === arguments[0]).click()",
        label,
    )


def test_it_renews_itself_and_shows_markup_in_keys_as_text(
    chromium: Any, serve: Serve, five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    chromium.get(serve())
    assert "5 of 5 nodes vote" in text(chromium)
    assert "Nothing is held." in text(chromium)
    lease = redlock.acquire(KEY, 60, label="task-1")
    eventually(lambda: KEY in text(chromium))
    click(chromium, KEY)
    eventually(lambda: "it does not run" in text(chromium))
    assert KEY in text(chromium)
    assert chromium.title == KEY
    chromium.back()
    redlock.release(lease)
    eventually(lambda: "Nothing is held." in text(chromium))
    # Nothing was refused by the policy, and no script failed.
    assert [line for line in chromium.get_log("browser") if line["level"] == "SEVERE"] == []


def test_with_the_token_a_lock_is_released(
    chromium: Any, serve: Serve, five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    redlock.acquire("bank.sync:42", 60, label="task-1")
    url = serve(token=TOKEN)
    chromium.get(url)
    chromium.find_element("name", "token").send_keys(TOKEN, "\n")
    eventually(lambda: "bank.sync:42" in text(chromium))
    chromium.get(f"{url}lock?key=bank.sync:42")
    click(chromium, "Release …")
    eventually(lambda: "Consequence:" in text(chromium))
    click(chromium, "Release it")
    eventually(lambda: "bank.sync:42 is released." in text(chromium))
    assert redlock.read_holder("bank.sync:42") is None


def test_it_fits_a_phone_and_follows_the_dark_scheme(
    chromium: Any, serve: Serve, five: Servers, new_redlock: NewRedlock
) -> None:
    new_redlock(five.urls).acquire("bank.sync:" + "long" * 40, 60, label="task-1")
    url = serve()
    chromium.get(url)
    light = colours(chromium)
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    for path in ("", "lock?key=bank.sync:" + "long" * 40):
        chromium.get(url + path)
        root = "document.documentElement"
        assert chromium.execute_script(f"return {root}.scrollWidth") <= 360, path
    dark = colours(chromium)
    assert brightness(light["back"]) > brightness(light["text"])
    assert brightness(dark["back"]) < brightness(dark["text"])


def colours(chromium: Any) -> dict[str, str]:
    """Return the colours of the page."""
    found: dict[str, str] = chromium.execute_script(
        "const s = getComputedStyle(document.body);return {back: s.backgroundColor, text: s.color}"
    )
    return found


def brightness(colour: str) -> int:
    """Return the sum of the parts of `rgb(…)`."""
    return sum(map(int, colour.partition("(")[2].rstrip(")").split(",")))
