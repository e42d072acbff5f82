"""What the workflows of .github/ load is fixed, and they do what they say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def uses(text: str) -> list[str]:
    return re.findall(r"^ *-? *uses: (?!\./)(.*)$", text, re.MULTILINE)


def jobs(workflow: str) -> dict[str, str]:
    """Return the text of each job of a workflow."""
    _, _, text = (WORKFLOWS[0].parent / workflow).read_text().partition("\njobs:\n")
    _, *parts = re.split(r"^  (\w+):$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_action_is_pinned_by_commit(file: Path) -> None:
    actions = uses(file.read_text())
    assert actions
    assert [action for action in actions if not PINNED.fullmatch(action)] == []


def test_an_action_has_one_version_in_all_workflows() -> None:
    pins = {action for file in WORKFLOWS for action in uses(file.read_text())}
    assert len(pins) == len({action.split("@")[0] for action in pins})


def test_each_variable_of_a_workflow_is_read_by_something() -> None:
    named = {one for file in WORKFLOWS for one in re.findall(r"REDLOCK_\w+", file.read_text())}
    readers = [
        file for top in ("tests", "tools", "celery_redlock") for file in (ROOT / top).rglob("*.py")
    ]
    read = "\n".join(file.read_text() for file in readers if file != Path(__file__))
    assert named
    assert sorted(one for one in named if f'"{one}"' not in read) == []


def test_nothing_is_published_unless_the_checks_pass() -> None:
    release = jobs("release.yml")
    assert "    uses: ./.github/workflows/ci.yml\n" in release["checks"]
    assert "    needs: [checks, build]\n" in release["publish"]
    assert "\n  workflow_call:\n" in (WORKFLOWS[0].parent / "ci.yml").read_text()


def test_servers_of_version_8_are_tested_where_they_can_be_had() -> None:
    job = jobs("ci.yml")["servers"]
    assert "    container: debian:trixie\n" in job
    assert "      - run: make servers\n" in job
    assert "debian-servers" not in job


def test_a_machine_without_servers_of_version_8_runs_no_test_and_fails(tmp_path: Path) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")  # it knows no mirror of Debian's
    (tmp_path / "apt-get").chmod(0o755)
    ran = subprocess.run(
        [ROOT / ".ci" / "debian-servers", tmp_path / "servers"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "no Redis 8, no Valkey 8: not Debian\n")
