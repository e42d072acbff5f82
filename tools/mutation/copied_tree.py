"""A copy of the source tree, in which a file may be changed and a test be run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.root import ROOT

if TYPE_CHECKING:
    from typing_extensions import Self

_WITHOUT = shutil.ignore_patterns("__pycache__", "node_modules", "*.svg", "*.png")
_TEST_S = 60
"""A test that hangs has failed: some bugs are deadlocks. The slowest one takes a few seconds."""


class CopiedTree:
    """The package and its tests, without what is not needed to run fast tests; used by `with`.

    Args:
        folder: Folder for the copy, which is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("celery_redlock", "tests", "tools"):
            shutil.copytree(ROOT / name, folder / name, ignore=_WITHOUT)
        shutil.copy(ROOT / "pyproject.toml", folder)

    @contextmanager
    def changed(self, file: str, old: str, new: str) -> Iterator[None]:
        """Replace the one occurrence of `old` in a file by `new` for the length of a block.

        Raises:
            ValueError: `old` is not in the file exactly once.
        """
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times: {old!r}")
        path.write_text(text.replace(old, new), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "tests/support/processes/forked_tests.py"],
            cwd=self.folder,
            # No bytecode: a file that is changed twice within a second would run as it was before.
            env=os.environ
            | {"PYTHONDONTWRITEBYTECODE": "1", "REDLOCK_EVIDENCE_INTO": str(self.folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests in the copy, up to the first that fails; return pytest's status and output."""
        arguments = [
            "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov",
            # Of what was imported before the fork: plugins.
            "-W", "ignore::pytest.PytestAssertRewriteWarning",
            "--timeout", str(_TEST_S), *tests,
        ]  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        status, printed = json.loads(self._process.stdout.readline())
        return status, printed
