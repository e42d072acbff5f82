"""The file that proves that beat ticks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_redlock import heartbeat
from celery_redlock.heartbeat import Heartbeat, age, path_of
from tests.support.fake_clock import FakeClock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(heartbeat, "_now", clock.now)
    return clock


def app(name: str | None = "shop", broker: str = "redis://a") -> Celery:
    return Celery(name, broker=broker, set_as_current=False)


def test_it_says_how_long_ago_beat_ticked(clock: FakeClock) -> None:
    Heartbeat(app()).beat()
    clock.move(12.5)
    assert age(app()) == pytest.approx(12.5)


def test_before_the_first_tick_there_is_no_age() -> None:
    assert age(app()) is None


def test_what_an_earlier_boot_left_behind_is_none(clock: FakeClock) -> None:
    Heartbeat(app()).beat()
    clock.move(-500)
    assert age(app()) is None


def test_apps_are_told_apart_by_name_and_broker() -> None:
    Heartbeat(app()).beat()
    assert age(app("bank")) is None
    assert age(app(broker="redis://b")) is None
    assert age(app(name=None)) is None


def test_it_is_written_once_a_second(clock: FakeClock, folder: Path) -> None:
    beating = Heartbeat(app())
    beating.beat()
    before = path_of(app()).stat().st_ino
    clock.move(0.5)
    beating.beat()
    assert path_of(app()).stat().st_ino == before
    clock.move(0.6)
    beating.beat()
    assert age(app()) == 0
    assert list(folder.iterdir()) == [path_of(app())]


def test_no_link_is_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    precious = tmp_path_factory.mktemp("elsewhere") / "precious"
    precious.write_text("precious")
    path_of(app()).symlink_to(precious)
    Heartbeat(app()).beat()
    assert precious.read_text() == "precious"
    assert age(app()) == 0


@pytest.mark.parametrize("content", ["", "soon", "\xff"])
def test_what_is_no_number_is_no_age(content: str) -> None:
    path_of(app()).write_text(content, encoding="latin-1")
    assert age(app()) is None


def test_somebody_elses_file_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(app())
    Heartbeat(app()).beat()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    path.rename(path_of(app()))
    assert age(app()) is None


def test_a_folder_that_cannot_be_written_does_not_end_beat(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "missing"))
    Heartbeat(app()).beat()
    assert age(app()) is None


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "replace", fail)
    Heartbeat(app()).beat()
    assert list(folder.iterdir()) == []
