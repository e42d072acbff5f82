"""The page of the commands shows what they print, and lists each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from celery_redlock.cli import redlock
from celery_redlock.cli.alone import main
from celery_redlock.operate.doctor.traps import TRAPS
from celery_redlock.testing import find_server_binary
from tests.support.requirements import unmet
from tools.docs import commands, doctor_page, symptoms
from tools.docs.markdown import blocks, codes, tables


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beats that others run on this machine leave their liveness files in another folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(600)  # each command is a process that loads Celery
def test_the_page_shows_what_the_commands_print() -> None:
    try:
        find_server_binary()
    except FileNotFoundError as error:
        unmet(str(error))
    recorded = commands.recorded()
    assert recorded
    with commands.project() as folder:
        for block in recorded:
            assert commands.masked(commands.run(block, folder)) == commands.masked(block)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_of_symptoms_shows_what_the_commands_print() -> None:
    try:
        find_server_binary()
    except FileNotFoundError as error:
        unmet(str(error))
    check_that_ten_questions_are_answered(played(symptoms.AtRedis))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_of_symptoms_shows_what_becomes_of_a_purge_at_rabbitmq() -> None:
    played(symptoms.AtRabbitMQ)


def test_the_page_of_symptoms_answers_the_questions_at_its_top() -> None:
    recorded = (block.code for block in blocks(symptoms.PAGE) if block.language == "console")
    check_that_ten_questions_are_answered("".join(recorded))


def check_that_ten_questions_are_answered(shown: str) -> None:
    """Check that each command at the top of the page has been run, and has printed its words."""
    questions = tables(symptoms.PAGE)[0]
    assert len(questions) == 10
    for row in questions:
        [command], words = codes(row["command"]), codes(row["words that decide"])
        assert words
        answers = [output for typed, output in typed_in(shown) if typed == command]
        assert any(all(is_in(answer, one) for one in words) for answer in answers), (row, answers)


def played(kind: type[symptoms.Stage]) -> str:
    """Return what the page's blocks of a stage show now: what they show on the page."""
    with symptoms.stage(kind) as stage:
        runs = list(symptoms.shown_and_run(stage))
    assert runs
    for block, now in runs:
        assert commands.masked(now) == commands.masked(block)
    return "".join(now for _, now in runs)


def typed_in(shown: str) -> Iterator[tuple[str, str]]:
    """Yield each command, and what it has printed."""
    for one in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]:
        typed, _, output = one.partition("\n")
        yield typed, output


def is_in(answer: str, words: str) -> bool:
    """Return whether a line of an answer has these words; `…` stands for anything."""
    pattern = ".*".join(r"\s+".join(map(re.escape, part.split())) for part in words.split("…"))
    return re.search(pattern, answer) is not None


@pytest.mark.parametrize("name", sorted(redlock.commands))
def test_each_command_has_a_section_that_names_its_options(name: str) -> None:
    text = commands.PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## `{name}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, name
    for option in redlock.commands[name].params:
        if isinstance(option, click.Option):
            assert f"`{option.opts[0]}" in found[1], option.opts[0]


def test_the_options_without_an_app_are_listed() -> None:
    text = commands.PAGE.read_text(encoding="utf-8")
    for option in main.params:
        assert f"`{option.opts[0]}" in text


def test_the_page_of_the_doctor_is_made_from_the_code() -> None:
    assert doctor_page.FILE.read_text(encoding="utf-8") == doctor_page.page()


def test_each_code_of_the_doctor_is_used_once() -> None:
    codes = [trap.code for trap in TRAPS]
    assert len(set(codes)) == len(codes)
    assert codes == sorted(codes)
