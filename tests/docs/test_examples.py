"""Every code block of the documentation runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_redlock.testing import find_server_binary
from tests.support.requirements import unmet
from tests.support.root import ROOT
from tools.docs.markdown import blocks, pages

RUNNABLE = {"python", "pycon", "hidden"}
SHOWN = RUNNABLE | {"console", "text", "sql", "lua", "ini", "toml", "yaml", "diff"}

# tutorial.md needs a terminal beside the one that runs its python: see test_tutorial.
WITH_EXAMPLES = [
    page
    for page in pages()
    if page.exists()
    and page.name != "tutorial.md"
    and any(block.language in RUNNABLE for block in blocks(page))
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    try:
        find_server_binary()
    except FileNotFoundError as error:
        unmet(str(error))
    ended = subprocess.run(
        [sys.executable, "-m", "tools.docs.run_page", str(page)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_what_is_not_run_is_python_and_rare(page: Path) -> None:
    not_run = [block for block in blocks(page) if block.not_run]
    for block in not_run:
        if block.language == "python":
            compile(block.code, f"{page}:{block.line}", "exec", dont_inherit=True)
    assert len(not_run) <= 1, "find a way to run them: a hidden block can start what they need"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in SHOWN, f"{page}:{block.line}: {block.language!r}"
