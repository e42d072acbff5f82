"""What `celery redlock beat-alive` says, and exits with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_redlock.beat import liveness
from celery_redlock.cli.beat_alive import beat_alive


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


CAUSES = "it hangs, has ended, or can't publish; its log names the reason"


def run(app: Celery, *args: str) -> Result:
    return CliRunner().invoke(beat_alive, args, obj=SimpleNamespace(app=app))


@pytest.mark.parametrize(
    ("age", "args", "code", "says"),
    [
        (59.9, (), 0, "beat last ticked 59.9 s ago\n"),
        (60.0, (), 0, "beat last ticked 60.0 s ago\n"),
        (60.1, (), 1, f"beat last ticked 60.1 s ago, more than 60.0 s: {CAUSES}\n"),
        (7.0, ("--max-age", "5"), 1, f"beat last ticked 7.0 s ago, more than 5.0 s: {CAUSES}\n"),
        (7.0, ("--max-age", "7.5"), 0, "beat last ticked 7.0 s ago\n"),
    ],
)
def test_beat_is_alive_if_its_last_tick_is_recent(
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    age: float,
    args: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr(liveness, "age", lambda of: age if of is app else None)
    result = run(app, *args)
    assert (result.exit_code, result.output) == (code, says)


@pytest.mark.parametrize(("age", "stream"), [(59.9, "out"), (60.1, "err"), (None, "err")])
def test_what_is_wrong_with_beat_goes_to_the_standard_error(
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    age: float | None,
    stream: str,
) -> None:
    monkeypatch.setattr(liveness, "age", lambda _: age)
    with pytest.raises(SystemExit):
        beat_alive.main([], obj=SimpleNamespace(app=app))
    printed = capsys.readouterr()
    assert [bool(printed.out), bool(printed.err)] == [stream == "out", stream == "err"]


def test_without_a_tick_it_fails_and_names_the_missing_file(app: Celery) -> None:
    result = run(app)
    assert result.exit_code == 1
    assert f"no {liveness.path_of(app)}" in result.output


@pytest.mark.parametrize("max_age", ["0", "-1", "soon"])
def test_an_invalid_max_age_is_refused(app: Celery, max_age: str) -> None:
    result = run(app, "--max-age", max_age)
    assert result.exit_code == 2
    assert "--max-age" in result.output


def test_without_a_folder_for_temporary_files_it_fails_and_says_so(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    result = run(app)
    assert result.exit_code == 1
    assert "No usable temporary directory found" in result.output
