"""The mutation gate: what it mutates, and how it counts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.evidence import record, recorded
from tests.support.root import ROOT
from tools.mutation import scores
from tools.mutation.gate import LEFT_OUT, MODULES, SCRIPTS, SLOW, TESTS, room_tests
from tools.mutation.lua import mutants
from tools.mutation.scores import PACKAGE, Scores, equivalents
from tools.mutation.share import by_room, files_with_code, share_of

A = "- a\n+ b"
B = "- c\n+ d"


@pytest.fixture
def into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of figures; of one file, one change is known to change nothing."""
    known = [scores.Equivalent("redlock/lease.py", A, "no difference")]
    monkeypatch.setattr(scores, "equivalents", lambda: known)
    monkeypatch.setattr(scores, "PUBLISHED", tmp_path)
    monkeypatch.setattr(scores, "RECORDED", tmp_path)
    monkeypatch.setenv("REDLOCK_EVIDENCE_INTO", str(tmp_path))
    return tmp_path


def test_every_rule_is_mutated_with_tests_that_exist() -> None:
    package = ROOT / PACKAGE
    assert {path.relative_to(package).as_posix() for path in package.rglob("*.lua")} == {*SCRIPTS}
    assert {*LEFT_OUT} <= {*files_with_code()}
    assert all((ROOT / room_tests(file.partition("/")[0])).exists() for file in MODULES)
    for file, _, test in (test.partition("::") for test in SLOW):
        assert f"def {test}" in (ROOT / TESTS / file).read_text(encoding="utf-8")


def test_each_equivalent_mutant_has_a_reason_and_its_lines_in_the_file() -> None:
    for one in equivalents():
        text = (ROOT / PACKAGE / one.file).read_text(encoding="utf-8")
        removed = [line[2:] for line in one.change.splitlines() if line.startswith("-")]
        assert one.reason
        assert removed
        assert set(removed) <= {line.strip() for line in text.splitlines()}, one


def test_each_equivalent_mutant_is_listed_once() -> None:
    listed = sorted((one.file, one.change) for one in equivalents())
    assert all(one != other for one, other in pairwise(listed))


def test_a_survivor_without_a_reason_fails_the_gate(
    into: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Scores()
    tried.kill("redlock/lease.py", 7)
    tried.judge("redlock/lease.py", A)
    tried.judge("redlock/lease.py", B)
    assert tried.told(is_complete=True) == 1
    assert f"survived: redlock/lease.py\n{B}\n" in capsys.readouterr().out
    assert recorded(into)["mutants"] == {
        "by_file": {"redlock/lease.py": {"killed": 7, "survived": 1, "equivalent": 1}},
        "killed": 7, "survived": 1, "equivalent": 1,
    }  # fmt: skip


def test_survivors_with_reasons_pass_the_gate(into: Path) -> None:
    tried = Scores()
    tried.judge("redlock/lease.py", A)
    assert tried.told(is_complete=True) == 0


def test_a_reason_without_its_mutant_fails_the_gate(
    into: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Scores()
    tried.kill("redlock/lease.py")
    assert tried.told(is_complete=True) == 1
    assert "killed or gone" in capsys.readouterr().out


def test_an_incomplete_run_records_nothing(into: Path) -> None:
    tried = Scores()
    tried.kill("redlock/lease.py")
    assert tried.told(is_complete=False) == 0
    assert not recorded(into)


def test_a_file_that_was_not_mutated_keeps_its_figures(into: Path) -> None:
    counts = {"killed": 3, "survived": 0, "equivalent": 2}
    record("mutants", by_file={"redlock/keeper.py": counts, "gone.py": counts})
    tried = Scores()
    tried.kill("redlock/release.py")
    tried.told(is_complete=True)
    by_file = recorded(into)["mutants"]["by_file"]
    assert by_file == {
        "redlock/keeper.py": counts,
        "redlock/release.py": {"killed": 1, "survived": 0, "equivalent": 0},
    }  # fmt: skip


def test_a_script_is_changed_everywhere_but_in_its_comments() -> None:
    changed = [(one.line, one.added) for one in mutants("-- 1 == 1\nif a == b then")]
    assert changed == [(2, "if a ~= b then")]


def test_the_share_is_that_of_the_files_with_code() -> None:
    every = share_of([])
    assert every.lines == 0
    assert "redlock/lease.py" in every.left_out
    assert "worker/__init__.py" not in every.left_out, "it has a docstring only"
    part = share_of(["redlock/lease.py", "redlock/protocol/lua/grant.lua"])
    assert part.of == every.of == sum(every.left_out.values())
    assert part.lines == sum(
        every.left_out[file] for file in set(every.left_out) - {*part.left_out}
    )
    assert str(part) == f"{part.lines} of {part.of} lines ({part.lines / part.of:.0%})"


def test_each_room_has_the_share_of_its_own_files() -> None:
    lease, control = "redlock/lease.py", "worker/control.py"
    rooms = by_room([lease, control])
    assert {room for room, share in rooms.items() if share.lines} == {"redlock", "worker"}
    assert rooms["redlock"].lines == share_of([lease]).lines
    assert all(file.endswith(".py") and "/" not in file for file in rooms["*.py"].left_out)
    assert sum(share.of for share in rooms.values()) == share_of([]).of
