"""The files on the page about installing are valid, and fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import unmet
from tests.support.root import ROOT
from tools.docs.markdown import blocks

PAGE = ROOT / "docs" / "how-to" / "install.md"
FILES = {block.title: block.code for block in blocks(PAGE) if block.title}
UNITS = [name for name in FILES if name.endswith(".service")]


def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="it comes with the extra dev")
    file = tmp_path / "compose.yaml"
    file.write_text(FILES["compose.yaml"])
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_the_worker_of_the_compose_file_names_each_node_in_it() -> None:
    text = FILES["compose.yaml"]
    services = re.findall(r"^  ([\w-]+):$", text.partition("\nvolumes:")[0], re.MULTILINE)
    assert set(services) == {*re.findall(r"redis://([\w-]+)", text), "worker"}
    assert len([name for name in services if name.startswith("lock-")]) == 3
    assert set(re.findall(r'environ\["(\w+)"\]', FILES["bank.py"])) == {"BROKER", "REDLOCK_NODES"}


@pytest.mark.parametrize("name", UNITS)
def test_a_systemd_unit_is_valid(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        unmet("there is no systemd-analyze", "systemd")
    # The programs that it starts need not be installed here.
    unit = tmp_path / name
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", FILES[name]))
    found = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in found.stderr.splitlines() if name in line]
    assert complaints == []
    assert "Install" in FILES[name]


def test_the_nodes_of_both_ways_never_evict() -> None:
    assert "--maxmemory-policy noeviction" in FILES["compose.yaml"]
    assert "maxmemory-policy noeviction" in FILES["redlock-node.conf"]
