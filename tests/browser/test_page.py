"""The page in a real browser. The tests are few, since each waits for a browser."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.chromium import focused, press, set_scheme, set_size, too_wide
from tests.support.eventually import eventually

from .conftest import Serve

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
TAB, ENTER = "\ue004", "\ue007"
LONG = "bank.reports.quarterly_statement_of_all_accounts:" + "tenant-9917/" * 8 + "2026-Q3"
KEY = "bank.sync:<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


def text(chromium: Any) -> str:
    """Return what a reader sees."""
    return str(chromium.execute_script("return document.body.innerText"))


def click(chromium: Any, label: str) -> None:
    """Click the link or button of this text, in one step: the page replaces them meanwhile.

    Nothing here waits for the page that follows. A key press does, and it may wait in vain: the
    page that got the key can be gone before it has said so.
    """
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
    assert "Locks work: 5 of 5 nodes vote, and 2 may fail." in text(chromium)
    assert "Nothing is held." in text(chromium)
    lease = redlock.acquire(KEY, label="task-1", renew=True)
    # Shortened in the middle.
    eventually(lambda: "bank.sync:<img src=x" in text(chromium))
    chromium.execute_script("document.querySelector('#locks .key a').click()")
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
    redlock.acquire("bank.sync:42", label="task-1", renew=True)
    url = serve(token=TOKEN)
    chromium.get(url)
    chromium.find_element("name", "token").send_keys(TOKEN)
    click(chromium, "Log in")
    eventually(lambda: "bank.sync:42" in text(chromium))
    chromium.get(f"{url}lock?key=bank.sync:42")
    click(chromium, "Release …")
    eventually(lambda: "Consequence:" in text(chromium))
    click(chromium, "Release it")
    eventually(lambda: "bank.sync:42 is released." in text(chromium))
    assert redlock.read_holder("bank.sync:42") is None


@pytest.mark.long
def test_it_fits_a_phone_and_follows_the_dark_scheme(
    chromium: Any, serve: Serve, five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    redlock.acquire("bank.sync:" + "long" * 40, label="task-" * 80, renew=True)
    redlock.acquire(LONG, label="5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51", renew=True)
    redlock.reserve(f"%beat:bank@0:{'nightly-' * 20}:2026-01-01T00:00:00Z:missed", 60, label="id")
    five[0].kill()
    url = serve()
    seen = {}
    for width, scheme in ((1280, "light"), (800, "light"), (390, "light"), (390, "dark")):
        set_size(chromium, width, 900)
        set_scheme(chromium, scheme)
        for path in ("", "lock?key=bank.sync:" + "long" * 40, f"lock?key={LONG}"):
            chromium.get(url + path)
            assert too_wide(chromium) == [], (width, path)
        seen[scheme] = colours(chromium)
    assert brightness(seen["light"]["back"]) > brightness(seen["light"]["text"])
    assert brightness(seen["dark"]["back"]) < brightness(seen["dark"]["text"])


def test_by_keyboard_the_focus_stays_while_the_page_is_renewed(
    chromium: Any, serve: Serve, five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    redlock.acquire("bank.sync:42", label="5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51", renew=True)
    chromium.get(serve())
    press(chromium, TAB)
    assert focused(chromium, "innerText") == "Skip to the contents"
    assert focused(chromium, "getBoundingClientRect().top") > 0
    press(chromium, ENTER)
    assert focused(chromium, "id") == "main"
    press(chromium, TAB)
    assert focused(chromium, "tagName") == "SUMMARY"
    press(chromium, ENTER)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert chromium.execute_script(outline) == "solid"
    chromium.execute_script("document.querySelector('#locks .key .copy').focus()")
    redlock.acquire("bank.sync:43", label="task-1", renew=True)
    eventually(lambda: "bank.sync:43" in text(chromium))
    assert focused(chromium, "dataset.copy") == "bank.sync:42"
    assert chromium.execute_script("return document.getElementById('node-details').open")
    # Nothing is said as long as the verdict is the same.
    spoken = "return document.getElementById('spoken').textContent"
    assert chromium.execute_script(spoken) == ""
    five[0].kill()
    eventually(lambda: "4 of 5 nodes vote, and 1 more may fail" in chromium.execute_script(spoken))
    # It is shown for a moment, in which a busy machine may not look.
    chromium.execute_script(
        "new MutationObserver(changes => window.wasCopied ||= changes.some(one => "
        "one.target.matches('.copied'))).observe(document, {subtree: true, attributes: true})"
    )
    press(chromium, ENTER)
    eventually(lambda: chromium.execute_script("return window.wasCopied"))


def colours(chromium: Any) -> dict[str, str]:
    """Return the colours of the page."""
    found: dict[str, str] = chromium.execute_script(
        "const s = getComputedStyle(document.body);return {back: s.backgroundColor, text: s.color}"
    )
    return found


def brightness(colour: str) -> int:
    """Return the sum of the parts of `rgb(…)`."""
    return sum(map(int, colour.partition("(")[2].rstrip(")").split(",")))
