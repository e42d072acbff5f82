"""The commands of docs/reference/commands.md, run again: `python -m tools.docs.commands` records.

Each ```` ```console ```` block there that begins with a command of ours is run, in order, in a
small project with three nodes. What changes from run to run is masked before it is compared.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from celery_redlock.testing import Server, start_servers
from tests.support.eventually import eventually
from tests.support.root import ROOT
from tools.docs.markdown import blocks

PAGE = ROOT / "docs" / "reference" / "commands.md"
_PROJECT = """
import time

from celery import Celery
from celery_redlock import singleton_task

app = Celery("bank", broker={broker!r}, backend={broker!r})
app.conf.redlock_nodes = {nodes!r}
app.conf.redlock_restart_guard = False
app.conf.redlock_node_timeout = 2.0


@singleton_task(app=app, lock_key="{{account_id}}")
def sync(account_id):
    while True:
        time.sleep(0.01)


@singleton_task(app=app, lock_key="{{month}}", lock_lifetime="until_executed")
def report(month):
    pass
"""
_PUBLISH = (
    "import bank; "
    "bank.sync.apply_async((42,), task_id='5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51', queue='busy'); "
    "bank.report.apply_async(('may',), task_id='0d9b8f6e-8a7c-4f0e-b1f5-0c9d7a1e2b3c')"
)
_UNHEARD = (
    "no worker answered within", "the workers have not answered yet", "tell what they have",
)  # fmt: skip
_DEFAULT_PORT = 8790
_LONGEST_S = 300.0
"""Longest time that a command may take on the busiest machine: who is on call waits for it."""
_VOLATILE = (
    # A tick's task id, by its time.
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "TICK"),
    (r"\b[0-9a-f]{12}\b", "ID"),
    (r"@[\w.-]+", "@HOST"),
    (r"holder_host=\S+", "holder_host=HOST"),
    (r"\bno /\S+", "no FILE"),
    # The servers word it differently.
    (r"(?m)(what: +)(ERR|NOPERM) .*", r"\1DENIED"),
    (r"[+-]?\d[\d.]*( (ms|s|min|h|d)\b)?", "N"),
    (r"(Redis|Valkey) N", "SERVER"),
    (r"[ ]+", " "),
)


@contextmanager
def project() -> Iterator[Path]:
    """Make a project: a worker's task holds `bank.sync:42`, a queued one reserves a key."""
    with tempfile.TemporaryDirectory() as name, Server() as broker, start_servers(3) as nodes:
        folder = Path(name)
        module = _PROJECT.format(broker=broker.url, nodes=nodes.urls)
        (folder / "bank.py").write_text(module)
        subprocess.run([sys.executable, "-c", _PUBLISH], cwd=folder, env=environment(), check=True)
        working = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "bank", "worker", "-Q", "busy", "-c", "1"],
            cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            with nodes[0].client() as client:
                eventually(lambda: client.exists("redlock:{bank.sync:42}"))
            (folder / "nodes").write_text(" ".join(nodes.urls))
            yield folder
        finally:
            # Its task never ends by itself.
            os.killpg(working.pid, signal.SIGKILL)
            working.wait()


def recorded() -> list[str]:
    """Return the blocks of the page that are runs of our commands."""
    return [
        block.code
        for block in blocks(PAGE)
        if block.language == "console" and re.match(r"\$ celery(-| .* )redlock[ _]", block.code)
    ]


def run(block: str, folder: Path) -> str:
    """Return the block with what its commands print now."""
    unheard = [text for text in _UNHEARD if text not in block]
    shown = []
    for command in re.findall(r"^\$ (.*)", block, re.MULTILINE):
        if command.endswith(" redlock web"):
            printed = _first_line(command, folder)
        else:
            printed = _printed(command, folder, unheard)
        shown.append(f"$ {command}\n{printed}")
    return "".join(shown)


def _printed(command: str, folder: Path, unheard: Sequence[str]) -> str:
    """Return what a command prints: again, if a worker was too slow to be heard."""
    printed = ""

    def is_whole() -> bool:
        nonlocal printed
        ran = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment(folder), capture_output=True,
            text=True, timeout=_LONGEST_S, check=False,
        )  # fmt: skip
        assert "Traceback" not in ran.stderr, ran.stderr
        printed = ran.stdout + ran.stderr
        return not any(text in printed for text in unheard)

    eventually(is_whole, f"the worker answers {command}")
    return printed


def _first_line(command: str, folder: Path) -> str:
    """Return the first line that a server prints, and end it. It listens at any port that is free;
    what is returned has the default.
    """
    with subprocess.Popen(
        [*command.split(), "--port", "0"], cwd=folder, env=environment(folder),
        stdout=subprocess.PIPE, text=True,
    ) as serving:  # fmt: skip
        assert serving.stdout
        try:
            return re.sub(r":\d+/", f":{_DEFAULT_PORT}/", serving.stdout.readline())
        finally:
            serving.kill()


def masked(text: str) -> str:
    """Return a text without what changes from run to run."""
    for volatile, mask in _VOLATILE:
        text = re.sub(volatile, mask, text)
    return text


def environment(folder: Path | None = None) -> dict[str, str]:
    """Return the environment of a project's commands."""
    more = {"PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"}
    if folder is not None and (folder / "nodes").exists():
        more["REDLOCK_NODES"] = (folder / "nodes").read_text()
    # The commands say who uses them.
    return os.environ | {"PYTHONPATH": str(ROOT), "LOGNAME": "alice"} | more


def main() -> None:
    """Write what the commands print now to the page: all, or those that the command line names."""
    chosen = set(sys.argv[1:])
    with project() as folder:
        for block in recorded():
            if chosen and not chosen & set(block.split()):
                continue
            text = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(text.replace(block, run(block, folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
