"""Run the fast tests on every other supported Python that is installed; `make pythons`.

The versions are those of pyproject.toml's classifiers. A Python that is not installed is skipped
with a message, also in CI, where each has a job of its own. The Python that runs nox must be
supported; `make check` runs its tests.
Other tests: `nox -- tests/integration`; one Python: `nox -p 3.12`.
"""

from __future__ import annotations

import sys

import nox

VERSIONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
FAST = ("tests/unit", "tests/contract", "tests/model")

nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False
nox.options.pythons = [version for version in VERSIONS if version != OWN]

if OWN not in VERSIONS:
    sys.exit(f"Python {OWN} is not supported; the classifiers name {', '.join(VERSIONS)}")


@nox.session(python=VERSIONS)
def tests(session: nox.Session) -> None:
    """Run the tests that are named, else the fast ones."""
    session.install("--editable", ".[test]")
    session.run("pytest", "-n", "logical", *(session.posargs or FAST))
    if session.python == VERSIONS[0]:
        # A tool that gives up the oldest Python first must not keep developers from it.
        session.install("--dry-run", "--editable", ".[dev]")
