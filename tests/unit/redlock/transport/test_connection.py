"""Packing: what hiredis would send. It gets only bytes: else a signal can crash the process."""

from __future__ import annotations

import subprocess
import sys

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.redlock.protocol.scripts import ALL, GRANT, Argument, evalsha
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
command = evalsha(GRANT, ("lock", "floor"), "é", 30_000, 1_795_000_000_000_000, 1_000_000, 1)
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


class Loud(str):
    """Text that is sent as its `str`, not as what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


ARGUMENTS = st.one_of(
    st.text(st.characters(codec="ascii")),
    st.text(st.characters(codec="utf-8")),
    st.integers(),
    st.binary(),
    st.integers(505, 515).map("x".__mul__),
)


@example(())
@example(("TIME",))
@example(evalsha(GRANT, ("lock", "floor"), "owner", 30_000, 1_795_000_000_000_000, 1_000_000, 1))
@example(ALL[0].loading)
@given(st.lists(ARGUMENTS).map(tuple))
def test_a_command_is_packed_as_by_hiredis(command: tuple[Argument, ...]) -> None:
    assert pack(command) == hiredis.pack_command(command)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", [b"raw", "é", Loud("text"), True])
def test_only_bytes_reach_hiredis(packed: list[object], argument: Argument) -> None:
    sent = argument if isinstance(argument, bytes) else str(argument).encode()
    assert pack(("SET", argument, 12)) == hiredis.pack_command((b"SET", sent, b"12"))  # type: ignore[arg-type]
    assert packed == [b"SET", sent, b"12"]


def test_a_handler_that_raises_in_packing_crashes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], cwd=ROOT, check=False)
    assert done.returncode == 0
