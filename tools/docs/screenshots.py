"""Pictures of the built site and of each drawing, in both colours.

    python -m tools.docs.screenshots FOLDER

To be looked at: `index.html` in FOLDER shows them all. A picture that a page can't load, or a page
that is wider than the window, is an error. Two sheets of the main pages are in the documentation:
`python -m tools.docs.screenshots FOLDER --sheets` writes them again.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.chromium import set_scheme, set_size, start_chromium
from tests.support.eventually import eventually
from tests.support.root import ROOT

SCHEMES = ("light", "dark")
PAGES = (
    "", "tutorial/", "reference/options/", "explanation/evidence/", "how-to/run-beat/",
    "how-to/migrate/", "reference/api/", "evidence/first-hour/",
)  # fmt: skip
QUERY = "release a lock"
SHEETS = ROOT / "docs" / "evidence" / "first-hour"
_WIDTH, _TALLEST = 1280, 2400
_MISSING = "return [...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
_HEIGHT = "return document.documentElement.scrollHeight"
# The words by which pages were found, as far as they are typed.
_FOUND = (
    "return [...document.querySelectorAll('.md-search-result__link')]"
    ".flatMap(one => (new URL(one.href).searchParams.get('h') || '').split(' '))"
)
_IS_WIDE = "return document.documentElement.scrollWidth > window.innerWidth"


def main() -> int:
    """Take all pictures; return 1 if a page is broken."""
    parser = argparse.ArgumentParser(prog="tools.docs.screenshots")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sheets", action="store_true")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    SHEETS.mkdir(exist_ok=True)
    site = folder / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(site)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    broken: list[str] = []
    with served(folder) as url, start_chromium() as chromium:
        for scheme in SCHEMES:
            set_scheme(chromium, scheme)
            pages = _site(chromium, f"{url}/site/", folder, scheme, broken)
            drawings = _drawings(chromium, f"{url}/site/", folder, scheme)
            (folder / f"{scheme}.html").write_text(_sheet(pages, "30%"), encoding="utf-8")
            if given.sheets:
                set_size(chromium, _WIDTH, 1000)
                chromium.get(f"{url}/{scheme}.html")
                _take(chromium, SHEETS / f"site-{scheme}.webp", _TALLEST, quality=60)
            _index(folder, scheme, [*pages, *drawings])
    sys.stdout.write("".join(f"{line}\n" for line in [*broken, str(folder / "index.html")]))
    return int(bool(broken))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; give its URL."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _site(chromium: Any, url: str, folder: Path, scheme: str, broken: list[str]) -> list[str]:
    taken = []
    # The site remembers the colours that it was seen in first.
    chromium.get(url)
    chromium.execute_script("localStorage.clear()")
    for page in PAGES:
        set_size(chromium, _WIDTH, 1000)
        chromium.get(url + page)
        missing = chromium.execute_script(_MISSING)
        broken += [f"{page}: picture {one} is missing" for one in missing]
        if chromium.execute_script(_IS_WIDE):
            broken.append(f"{page}: wider than {_WIDTH} px")
        name = f"{page.strip('/').replace('/', '-') or 'home'}-{scheme}.webp"
        _take(chromium, folder / name, _TALLEST)
        taken.append(name)
    set_size(chromium, _WIDTH, 1000)
    chromium.get(url)
    box = chromium.find_element("css selector", "input.md-search__input")
    chromium.execute_script("arguments[0].focus()", box)
    box.send_keys(QUERY)
    last_word = QUERY.rsplit(maxsplit=1)[-1]
    eventually(lambda: last_word in chromium.execute_script(_FOUND), "the search finds pages")
    _take(chromium, folder / f"search-{scheme}.webp", 1000)
    return [*taken, f"search-{scheme}.webp"]


def _drawings(chromium: Any, url: str, folder: Path, scheme: str) -> list[str]:
    taken = []
    for file in sorted((ROOT / "docs").rglob("*.svg")):
        set_size(chromium, 900, 600)
        page = folder / f"{file.stem}.html"
        at = f"site/{file.relative_to(ROOT / 'docs').as_posix()}"
        page.write_text(
            f'<meta name="color-scheme" content="light dark"><img src="{at}" width="860">',
            encoding="utf-8",
        )
        chromium.get(url.removesuffix("site/") + page.name)
        taken.append(f"{file.stem}-{scheme}.webp")
        _take(chromium, folder / taken[-1], _TALLEST)
    return taken


def _take(chromium: Any, into: Path, tallest: int, *, quality: int = 80) -> None:
    """Take a picture of a page from its top, as high as it is, up to a limit."""
    height = min(max(chromium.execute_script(_HEIGHT), 200), tallest)
    width = chromium.execute_script("return window.innerWidth")
    set_size(chromium, width, height)
    taken = chromium.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "webp", "quality": quality}
    )
    into.write_bytes(base64.b64decode(taken["data"]))


def _sheet(pictures: list[str], width: str) -> str:
    style = (
        f"img {{ width: {width}; height: 700px; object-fit: contain; object-position: top; "
        "margin: 0.8%; outline: 1px solid gray; }"
    )
    shown = "".join(f'<img src="{one}" alt="{one}">' for one in pictures)
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    return f"<!doctype html>{head}<style>{style}</style>{shown}"


def _index(folder: Path, scheme: str, pictures: list[str]) -> None:
    file = folder / "index.html"
    text = "" if scheme == SCHEMES[0] else file.read_text(encoding="utf-8")
    shown = "".join(f'<h2>{one}</h2><img src="{one}" style="max-width: 100%">' for one in pictures)
    file.write_text(text + shown, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
