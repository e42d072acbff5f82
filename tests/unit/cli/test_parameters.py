"""What a command can't use is an error of its usage, and no traceback."""

from __future__ import annotations

import click
import pytest

from celery_redlock.cli.parameters import Json, Seconds
from celery_redlock.redlock.validation import LONGEST_S
from tests.support.processes.ran import Run

NO_UTF_8 = "\udcff"


@pytest.mark.parametrize(
    "words",
    [
        ("show", NO_UTF_8),
        ("release", NO_UTF_8, "--yes"),
        ("release", "key", "--done", NO_UTF_8),
        ("release", "--orphaned", "--queue", NO_UTF_8),
        ("list", "--match", NO_UTF_8),
    ],
)
def test_text_that_is_no_utf_8_is_refused(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.exit_code == 2
    assert r"'\udcff' can't be encoded as UTF-8" in ran.output


@pytest.mark.parametrize("value", ["nan", "inf", "1e9"])
@pytest.mark.parametrize(
    "words", [("top", "--count", "1", "--interval"), ("release", "--orphaned", "--grace")]
)
def test_a_time_that_nobody_can_wait_is_refused(
    run: Run, words: tuple[str, ...], value: str
) -> None:
    ran = run(*words, value)
    assert ran.exit_code == 2
    assert "is more than 315360000 (ten years)" in ran.output


def test_the_longest_time_that_the_lock_takes_is_taken() -> None:
    assert Seconds().convert(LONGEST_S, None, None) == LONGEST_S


@pytest.mark.parametrize(("kind", "other"), [(list, "{}"), (dict, "[]")])
def test_json_is_of_the_type_that_is_asked_for(kind: type, other: str) -> None:
    assert Json(kind).convert(str(kind()), None, None) == kind()
    with pytest.raises(click.BadParameter, match=f"is not a JSON {kind.__name__}"):
        Json(kind).convert(other, None, None)
