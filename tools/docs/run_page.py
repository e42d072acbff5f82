"""Run the examples of one page: `python -m tools.docs.run_page docs/index.md`.

A process of its own for each page, in an empty folder, as a reader would. What is shown in a
traceback are the page's own lines.
"""

from __future__ import annotations

import doctest
import gc
import linecache
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.defaults import NODE_TIMEOUT_S
from tools.docs.markdown import Block, blocks

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def main() -> int:
    """Run the page that the command line names, and return the exit status."""
    page = Path(sys.argv[1])
    # Celery, too, calls what redis-py has deprecated; that is not the page's fault.
    warnings.filterwarnings("error", module=r"__main__|celery_redlock\b")
    linecache.getlines(str(page))
    _be_patient()
    # A module that is known, since Celery and dataclasses look theirs up.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path.insert(0, "")
    failures = 0
    for block in blocks(page):
        failures += _run(block, page, module.__dict__)
        # A result of Celery that is left when its server has gone is looked for, for 20 s.
        gc.collect()
    return failures


def _be_patient() -> None:
    """Give servers more time than the default: the machine may be busy with other tests."""
    make = Redlock.__init__

    def make_patient(self: Redlock, nodes: Sequence[str], **options: Any) -> None:
        if options.get("node_timeout", NODE_TIMEOUT_S) == NODE_TIMEOUT_S:
            options["node_timeout"] = 2.0
        make(self, nodes, **options)

    Redlock.__init__ = make_patient  # type: ignore[assignment,method-assign]


def _run(block: Block, page: Path, namespace: dict[str, object]) -> int:
    """Run one block; return how many of its examples printed something else than they say."""
    if block.not_run is not None:
        return 0
    if block.title is not None:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.code, encoding="utf-8")
    elif block.language in ("python", "hidden"):
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102 - our own documentation
    elif block.language == "pycon":
        return _check_output(block, page, namespace)
    return 0


def _check_output(block: Block, page: Path, namespace: dict[str, object]) -> int:
    parser = doctest.DocTestParser()
    test = parser.get_doctest(block.code, {}, page.name, str(page), block.line - 1)
    test.globs = namespace
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    runner.run(test, clear_globs=False)
    return runner.failures


if __name__ == "__main__":
    sys.exit(main())
