"""The Node.js packages: installed by npm at pinned versions, and driven over a pipe."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.root import ROOT

from .names import NODE_REDLOCK, UNIVERSAL
from .sampling import Block, Samples

PACKAGES = {NODE_REDLOCK: "redlock", UNIVERSAL: "redlock-universal"}
_SOURCES = Path(__file__).parent / "node"
_INSTALLED = ROOT / "build" / "bench-node"
_INSTALL_S = 180.0


class NotInstalled(Exception):
    """The packages can't be had here: there is no npm, or it can't reach its registry."""


@cache
def installed() -> Path:
    """Return the folder in which the packages are installed; they bring their own Node.js.

    Raises:
        NotInstalled: With the reason.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("there is no npm")
    shutil.copytree(_SOURCES, _INSTALLED, dirs_exist_ok=True)
    if not (_INSTALLED / "node_modules" / ".package-lock.json").exists():
        command = [npm, "ci", "--no-audit", "--no-fund"]
        try:
            subprocess.run(
                command, cwd=_INSTALLED, timeout=_INSTALL_S, check=True, capture_output=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NotInstalled(f"npm ci failed: {error}") from error
    node = _INSTALLED / "node_modules" / ".bin" / "node"
    try:
        subprocess.run([node, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"its Node.js does not run: {error}") from error
    return _INSTALLED


def versions() -> dict[str, str]:
    """Return the pinned versions by package, Node.js among them."""
    pinned: dict[str, str] = json.loads((_SOURCES / "package.json").read_text())["dependencies"]
    return pinned


@contextmanager
def node_peer(name: str, urls: Sequence[str]) -> Iterator[Block]:
    """Start a process with one of the packages; return what makes calls there, and their samples.

    Raises:
        NotInstalled: With the reason.
    """
    folder = installed()
    process = subprocess.Popen(
        [folder / "node_modules" / ".bin" / "node", "peers.mjs"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    stdin, stdout = process.stdin, process.stdout

    def ask(**question: Any) -> dict[str, Any]:
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{name} ended: exit status {process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def block(calls: int) -> Samples:
        reply = ask(calls=calls)
        return Samples(reply["walls"], reply["cpu"])

    try:
        ask(peer=PACKAGES[name], urls=list(urls))
        yield block
    finally:
        process.kill()
        process.communicate()
