"""The file that proves that beat ticks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from celery import Celery

from celery_redlock.beat import liveness
from celery_redlock.beat.liveness import LivenessFile, age, path_of
from tests.support.fakes.fake_clock import FakeClock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(liveness, "_now", clock.now)
    return clock


def app(name: str | None = "shop", broker: str = "redis://a") -> Celery:
    return Celery(name, broker=broker, set_as_current=False)


def test_it_says_how_long_ago_beat_ticked(clock: FakeClock) -> None:
    LivenessFile(app()).touch()
    clock.move(12.5)
    assert age(app()) == pytest.approx(12.5)


def test_before_the_first_tick_there_is_no_age() -> None:
    assert age(app()) is None


def test_what_an_earlier_boot_left_behind_is_none(clock: FakeClock) -> None:
    LivenessFile(app()).touch()
    clock.move(-500)
    assert age(app()) is None


def test_apps_are_told_apart_by_name_and_broker() -> None:
    LivenessFile(app()).touch()
    assert age(app("bank")) is None
    assert age(app(broker="redis://b")) is None
    assert age(app(name=None)) is None


def test_it_is_written_once_a_second(clock: FakeClock, folder: Path) -> None:
    beating = LivenessFile(app())
    beating.touch()
    before = path_of(app()).stat().st_ino
    clock.move(0.5)
    beating.touch()
    assert path_of(app()).stat().st_ino == before
    clock.move(0.5)
    beating.touch()
    assert age(app()) == 0
    assert list(path_of(app()).parent.iterdir()) == [path_of(app())]
    assert list(folder.iterdir()) == [path_of(app()).parent]


def test_its_folder_is_this_users_alone(folder: Path) -> None:
    LivenessFile(app()).touch()
    [made] = folder.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_no_password_of_the_broker_is_in_its_name() -> None:
    names = {
        path_of(app(broker=f"redis://{user}a:1/2{options}")).name
        for user in ("", "u@", "u:p@", "u:other@", ":p@w@")
        for options in ("", "?password=p", "?password=other")
    }
    assert len(names) == 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o750, 0o701])
def test_a_folder_that_others_may_enter_is_not_used(
    mode: int, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    made = path_of(app()).parent
    made.mkdir()
    made.chmod(mode)
    path_of(app()).write_text("0.0\n")
    beating = LivenessFile(app())
    for _ in range(3):
        beating.touch()
        clock.move(2)
    assert age(app()) is None
    assert path_of(app()).read_text() == "0.0\n"
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"liveness file not written, beat-alive will fail error={made} is not")


def test_a_link_in_the_folders_place_is_not_used(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    elsewhere.chmod(0o700)
    path_of(app()).parent.symlink_to(elsewhere)
    LivenessFile(app()).touch()
    assert list(elsewhere.iterdir()) == []
    assert age(app()) is None


def test_no_link_is_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    precious = tmp_path_factory.mktemp("elsewhere") / "precious"
    precious.write_text("precious")
    path_of(app()).parent.mkdir(mode=0o700)
    path_of(app()).symlink_to(precious)
    LivenessFile(app()).touch()
    assert precious.read_text() == "precious"
    assert age(app()) == 0


@pytest.mark.parametrize("content", ["", "soon", "\xff"])
def test_what_is_no_number_is_no_age(content: str) -> None:
    path_of(app()).parent.mkdir(mode=0o700)
    path_of(app()).write_text(content, encoding="latin-1")
    assert age(app()) is None


def test_somebody_elses_file_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(app())
    LivenessFile(app()).touch()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    path_of(app()).parent.symlink_to(path.parent)
    assert age(app()) is None
    path_of(app()).parent.unlink()
    path.parent.rename(path_of(app()).parent)
    assert age(app()) is None


def test_a_folder_that_cannot_be_written_does_not_end_beat(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "missing"))
    LivenessFile(app()).touch()
    assert age(app()) is None


def test_without_user_ids_any_folder_is_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delattr(os, "getuid")
    folder = path_of(app()).parent
    folder.symlink_to(tmp_path_factory.mktemp("elsewhere"))
    LivenessFile(app()).touch()
    assert age(app()) is None
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    LivenessFile(app()).touch()
    assert age(app()) == 0


def test_without_a_folder_for_temporary_files_beat_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    LivenessFile(app()).touch()
    assert age(app()) is None
    assert "liveness file not written, beat-alive will fail" in caplog.text
