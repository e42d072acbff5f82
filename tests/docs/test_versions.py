"""The versions that are promised, tested and documented are the same."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import version

import pytest

from tests.support.root import ROOT
from tools.docs.markdown import tables

PROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text()
CONSTRAINTS = sorted((ROOT / ".ci").glob("celery-*.txt"))
PROMISES, TESTED, _ = tables(ROOT / "docs/reference/versions.md")
IN_DOCS = {"redis-py": "redis"}


def lower_bounds() -> dict[str, str]:
    found = re.search(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.DOTALL | re.MULTILINE)
    assert found
    return dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', found[1]))


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))


def minor(full: str) -> str:
    return ".".join(full.split(".")[:2])


def promised(what: str) -> tuple[str, str]:
    [row] = [row for row in PROMISES if row[""] == what]
    return row["from"], row["to"]


def documented(row: dict[str, str]) -> dict[str, str]:
    return {IN_DOCS.get(name, name.lower()): cell for name, cell in row.items()}


def matrix_of(name: str) -> list[str]:
    [found] = re.findall(rf"^ +{name}: \[(.*)\]$", WORKFLOW, re.MULTILINE)
    return re.findall(r'"([\d.]+)"', found)


def test_the_oldest_environment_has_exactly_the_lower_bounds() -> None:
    assert pins(CONSTRAINTS[0].read_text()) == lower_bounds()


def test_the_documented_versions_are_those_of_the_environments() -> None:
    *older, newest = map(documented, TESTED)
    assert older == [pins(file.read_text()) for file in CONSTRAINTS]
    assert set(newest.values()) == {newest["celery"], "newest"}


def test_each_file_of_constraints_is_named_after_its_celery() -> None:
    names = [f"celery-{minor(pins(file.read_text())['celery'])}.txt" for file in CONSTRAINTS]
    assert names == [file.name for file in CONSTRAINTS]


def test_no_celery_between_the_first_and_the_last_is_left_out() -> None:
    minors = [minor(documented(row)["celery"]) for row in TESTED]
    first, last = promised("Celery")
    assert (minors[0], minors[-1]) == (first, last)
    assert minors == [f"5.{number}" for number in range(int(first[2:]), int(last[2:]) + 1)]


def test_the_celery_that_is_installed_is_among_those_documented() -> None:
    # A new minor version has to be looked at before it may be promised.
    assert minor(version("celery")) in {minor(documented(row)["celery"]) for row in TESTED}


def test_the_readme_names_the_same_versions() -> None:
    first, last = promised("Celery")
    oldest_python, _ = promised("Python")
    oldest_server, _ = promised("Redis or Valkey")
    assert (
        f"Python {oldest_python} or newer, Celery {first} to {last}, "
        f"and Redis or Valkey servers of version {oldest_server} or newer"
    ) in (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The targets that `.ci/run` makes, from a run of it in which nothing else happens."""
    folder = tmp_path_factory.mktemp("ci")
    for name in (".ci/run", "bin/make", "bin/npm", ".venv/bin/python"):
        script = folder / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text('#!/bin/sh\necho "$1" >>made\n')
        script.chmod(0o755)
    (folder / ".ci/run").write_text((ROOT / ".ci/run").read_text())
    env = os.environ | {"CI": "false", "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([folder / ".ci/run"], env=env, capture_output=True, check=True)
    return set((folder / "made").read_text().split())


def test_continuous_integration_runs_each_version(made: set[str]) -> None:
    assert matrix_of("celery") == [minor(pins(file.read_text())["celery"]) for file in CONSTRAINTS]
    assert "versions" in made


def test_continuous_integration_runs_on_servers_of_version_8(made: set[str]) -> None:
    assert "Redis 8 and on Valkey 8" in (ROOT / "docs/reference/versions.md").read_text()
    assert "servers" in made
    packages = (ROOT / ".ci/debian-servers").read_text()
    assert re.findall(r"^suite=(.*)$", packages, re.MULTILINE) == ["trixie"]  # it has these
    assert re.findall(r"^apt_get install .* (\S+ \S+) \|\|$", packages, re.MULTILINE) == [
        "redis-server valkey-server"
    ]


def test_each_python_that_is_promised_is_classified_and_tested() -> None:
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert (classified[0], classified[-1]) == promised("Python")
    assert matrix_of("python") == classified
    assert f'requires-python = ">={classified[0]}"' in PROJECT


@pytest.mark.parametrize("name", ["celery", "click", "hiredis", "kombu", "redis"])
def test_what_is_installed_is_not_below_the_lower_bounds(name: str) -> None:
    def parts(full: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", full)[:3]]

    assert parts(version(name)) >= parts(lower_bounds()[name])
