"""The README's links work on the page of a package index, which knows no repository."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.root import ROOT

SCRIPT = ROOT / ".ci" / "addresses.py"
REPOSITORY = "https://git.example/team/celery-redlock"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A checkout, after the step of the release that adds the addresses."""
    for name in ("README.md", "pyproject.toml", "LICENSE", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    (tmp_path / "tests" / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "docs" / "test_peers.py", tmp_path / "tests" / "docs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    command = [sys.executable, str(tmp_path / ".ci/addresses.py"), REPOSITORY, "v1.2.3"]
    subprocess.run(command, check=True)
    return tmp_path


def targets(readme: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", readme)


def test_a_released_readme_has_only_absolute_links(released: Path) -> None:
    before = targets((ROOT / "README.md").read_text(encoding="utf-8"))
    after = targets((released / "README.md").read_text(encoding="utf-8"))
    assert len(after) == len(before) > 10
    assert [target for target in after if not target.startswith("https://")] == []
    assert f"{REPOSITORY}/raw/v1.2.3/docs/images/quorum-round.svg" in after
    assert f"{REPOSITORY}/blob/v1.2.3/docs/explanation/protocol.md#assumptions" in after


def test_a_released_project_names_its_repository(released: Path) -> None:
    project = (released / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.urls]\nSource = "{REPOSITORY}"\n' in project


def test_a_link_to_a_missing_file_stops_the_release(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("addresses", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match=r"docs/gone\.md"):
        module.with_addresses("[x](https://e.example) [y](docs/gone.md)", tmp_path, "r", "t")


def test_a_package_index_shows_the_readme(released: Path) -> None:
    renderer = pytest.importorskip("readme_renderer.markdown", reason="pip install '.[dev]'")
    shown = renderer.render((released / "README.md").read_text(encoding="utf-8"))
    assert shown
    assert "<table>" in shown
    assert re.search(rf'<img [^>]*src="{REPOSITORY}/raw/v1.2.3/docs/images/', shown)
    assert "from bank import app, sync" not in shown, "what is hidden is shown"
