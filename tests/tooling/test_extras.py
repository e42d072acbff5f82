"""The tests can be collected with no more than the extra `test` installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest

from tests.support.root import ROOT

_COLLECT = """
import sys
for module in sys.argv[1:]:
    sys.modules[module] = None  # as if it were not installed
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist"]))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named_by(extra: str) -> set[str]:
    """Return the distributions that an extra of this package names."""
    names = set()
    for requirement in requires("celery-redlock") or ():
        name, _, marker = requirement.partition(";")
        found = re.match(r"[\w.-]+", name)
        if found and re.search(rf"extra == ['\"]{extra}['\"]", marker):
            names.add(normal(found[0]))
    return names


@pytest.mark.long
def test_the_tests_are_collected_without_the_tools_of_developers() -> None:
    tools = named_by("dev") - named_by("test") - {"celery-redlock"}
    assert "mutmut" in tools
    modules = [
        module
        for module, owners in packages_distributions().items()
        if {normal(owner) for owner in owners} <= tools
    ]
    command = [sys.executable, "-W", "ignore", "-c", _COLLECT, *modules]
    # Its own: what measures this process must not start in that one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
