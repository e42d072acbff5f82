"""The built site: its search finds the right page, its API page has the parameters of each name.

It is built as `make docs` builds it. The search in the browser is lunr's; this one is lunr's in
Python, on the index that the site has.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import __version__
from tests.support.root import ROOT

pytest.importorskip("mkdocs", reason="comes with the extra docs")
lunr = pytest.importorskip("lunr", reason="comes with the extra docs")

pytestmark = pytest.mark.long  # `make docs` builds the site, too

TITLE_BOOST = 1000
"""As Material for MkDocs weighs titles."""
REPOSITORY = "https://git.example/bank/celery-redlock"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ
        | {"DOCS_SITE_URL": "https://docs.example/redlock/", "DOCS_REPO_URL": REPOSITORY},
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def index(site: Path) -> Any:
    """Return the search index, which the browser makes of the same documents."""
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    builder = lunr.get_default_builder()
    builder.pipeline.remove(lunr.stemmer.stemmer)
    builder.search_pipeline.remove(lunr.stemmer.stemmer)
    documents = [
        ({"at": one["location"], "title": text_of(one["title"]), "text": text_of(one["text"])},
         {"boost": one.get("boost", 1)})
        for one in found["docs"]
    ]  # fmt: skip
    fields = [{"field_name": "title", "boost": TITLE_BOOST}, "text"]
    return lunr.lunr(ref="at", fields=fields, documents=documents, builder=builder)


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


def pages_for(index: Any, query: str) -> list[str]:
    """Return the pages that a search in the browser finds, the best first.

    Each word of the query is the start of a word: "a" finds "above", too. A page, other than a
    section of one, has twice its score if all words are in it.
    """
    words = query.split()
    scores: dict[str, float] = {}
    for hit in index.search(" ".join(f"{word}*" for word in words)):
        page, _, section = hit["ref"].partition("#")
        found = hit["match_data"].metadata
        has_all = all(any(term.startswith(word) for term in found) for word in words)
        score = hit["score"] * (2 if has_all and not section else 1)
        scores[page] = max(score, scores.get(page, 0))
    return sorted(scores, key=lambda page: -scores[page])


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("release a lock", "how-to/on-call/"),
        ("prometheus", "how-to/monitor/"),
        ("django", "how-to/django/"),
        ("upgrade", "how-to/upgrade/"),
        ("rabbitmq", "how-to/brokers/"),
        ("sentinel", "how-to/regions/"),
        ("replace a node", "how-to/operate/"),
    ],
)
def test_a_search_finds_the_page_among_the_first_three(index: Any, query: str, page: str) -> None:
    assert page in pages_for(index, query)[:3]


def test_each_page_shows_version_and_repository(site: Path) -> None:
    pages = [*site.rglob("index.html")]
    assert pages
    for page in pages:
        shown = page.read_text(encoding="utf-8")
        assert f"celery-redlock {__version__}" in text_of(shown), page
        assert f'href="{REPOSITORY}"' in shown, page
        assert '<link rel="canonical" href="https://docs.example/redlock/' in shown, page


def test_the_api_page_shows_parameters_not_empty_boxes(site: Path) -> None:
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    boxes = re.findall(r'<div class="doc-signature[^"]*">(.*?)</div>', page, re.DOTALL)
    shown = [text_of(box).strip() for box in boxes]
    assert len(shown) > 50
    assert [one for one in shown if re.fullmatch(r"\w*", one)] == []


def test_lines_of_a_returned_value_are_one_item(site: Path) -> None:
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    lists = re.findall(r"Returns:</.*?<ul>(.*?)</ul>", page, re.DOTALL)
    assert lists
    assert [text_of(one) for one in lists if one.count("<li") != 1] == []
