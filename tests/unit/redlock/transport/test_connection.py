"""What hiredis is given to pack: bytes, for with anything else a signal can crash the process."""

from __future__ import annotations

import subprocess
import sys

import hiredis
import pytest

from celery_redlock.redlock.protocol.scripts import ALL, Argument, evalsha, reserving
from celery_redlock.redlock.transport import connection
from celery_redlock.redlock.transport.connection import pack
from tests.support.root import ROOT

STORM = """
import signal
from celery_redlock.redlock.transport.connection import pack
from celery_redlock.redlock.protocol.scripts import GRANT, evalsha

class Struck(Exception): pass

def strike(*_): raise Struck

signal.signal(signal.SIGALRM, strike)
command = evalsha(GRANT, ("lock", "floor"), "owner", 30_000, 1_795_000_000_000_000, 1_000_000, 1)
for _ in range(4000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while True:
            pack(command)
    except Struck:
        pass
"""


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    parts: list[object] = []

    def record(command: tuple[bytes, ...]) -> object:
        parts.extend(command)
        return hiredis.pack_command(command)  # type: ignore[arg-type]

    monkeypatch.setattr(connection, "_pack", record)
    return parts


@pytest.mark.parametrize(
    "command",
    [
        *[evalsha(script, ("lock", "floor"), "owner", 30_000, 7, b"raw") for script in ALL],
        *[script.loading for script in ALL],
        *reserving("lock", "owner", 30_000),
        ("TIME",),
    ],
)
def test_only_bytes_reach_the_packer(packed: list[object], command: tuple[Argument, ...]) -> None:
    assert pack(command) == hiredis.pack_command(command)  # type: ignore[arg-type]
    assert packed
    assert {type(part) for part in packed} == {bytes}


def test_text_is_packed_as_utf_8() -> None:
    assert pack(("é", 12, b"\xff")) == b"*3\r\n$2\r\n\xc3\xa9\r\n$2\r\n12\r\n$1\r\n\xff\r\n"


def test_a_handler_that_raises_in_packing_crashes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], cwd=ROOT, check=False)
    assert done.returncode == 0
