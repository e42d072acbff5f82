"""Which tests are of the lock alone, told by what they import, wherever their files are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .root import ROOT

# The model is the lock's protocol, without its code.
LOCK = ("celery_redlock.redlock", "tests.model")
ABOVE = ("celery", "celery_redlock")
# Servers are started for any test.
BESIDE = ("celery_redlock.testing",)


@cache
def is_of_the_lock_alone(file: Path) -> bool:
    """Return whether a file of tests imports the lock, and nothing that is above the lock.

    Above are Celery and the package's other rooms. Imports of what is imported from tests/ or
    tools/ count.
    """
    names = {name for each in _with_support(file) for name in _imports(each)}
    lock = {name for name in names if _is_in(name, LOCK)}
    others = {name for name in names - lock if not _is_in(name, BESIDE)}
    return bool(lock) and not any(_is_in(name, ABOVE) for name in others)


def _with_support(file: Path) -> set[Path]:
    """Return the file, and the files of tests/ and tools/ that it imports, directly or not."""
    found: set[Path] = set()
    left = [file]
    while left:
        found.add(one := left.pop())
        for name in _imports(one):
            path = ROOT / name.replace(".", "/")
            # The name's own file, or that of the module which it is taken from.
            files = (path.with_suffix(".py"), path / "__init__.py", path.parent.with_suffix(".py"))
            if _is_in(name, ("tests", "tools")):
                left += [file for file in files if file.exists() and file not in found]
    return found


@cache
def _imports(file: Path) -> frozenset[str]:
    """Return the modules that a file imports; for `from package import name`, that name in it."""
    return frozenset(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = [node.module] if node.module else []
            yield from (".".join([*above, *module, alias.name]) for alias in node.names)


def _is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
