"""The page of evidence shows the figures of recorded runs, and says what was not run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.config.options import Lifetime
from tests.simulation.tasks.schedule import KINDS_OF_SEEDS, traffic_of
from tests.support.evidence import record, recorded
from tests.support.root import ROOT
from tools.evidence import runs
from tools.evidence.publication import PAGE, collect, documentation, in_short, report
from tools.evidence.runs import (
    FILES,
    FOLDER,
    Run,
    age_of,
    all_runs,
    digest,
    oldest,
    run_now,
    runs_in,
    told,
)
from tools.evidence.summary import KINDS, summary_of
from tools.mutation.gate import ALL
from tools.mutation.share import by_room, share_of


def test_the_page_has_the_figures_of_the_runs() -> None:
    # Of what runs have recorded, and of the files as they are now: git is not asked.
    page = PAGE.read_text(encoding="utf-8")
    assert page == documentation(page, recorded(FOLDER), runs_in(FOLDER)), (
        "a run was recorded, or its code has changed; this makes the page true again, and runs "
        "nothing: .venv/bin/python -m tools.evidence.publication"
    )


def test_a_page_gets_another_table_and_keeps_its_words() -> None:
    page = PAGE.read_text(encoding="utf-8")
    other = documentation(page, {"ladder": {"rungs": 9}}, {})
    assert "| Ladder | 9 rungs | not recorded |" in other
    now = recorded(FOLDER), runs_in(FOLDER)
    assert documentation(other, *now) == documentation(page, *now)
    with pytest.raises(ValueError, match="no table"):
        documentation("# Evidence\n", {}, {})


def test_each_kind_on_the_page_is_explained_under_its_name() -> None:
    page = PAGE.read_text(encoding="utf-8").lower()
    names = [name for names in re.findall(r"^\*\*([a-z, ]+)\.\*\*", page, re.MULTILINE)
             for name in names.split(", ")]  # fmt: skip
    kinds = {kind.replace("_", " ") for kind in KINDS} - {"replay on servers"}  # under replay
    assert kinds - {*names} == set()


def test_another_figure_makes_another_report() -> None:
    assert "123,456" in report({"simulation": {"schedules": 123_456}}, {})


def test_what_was_not_run_is_no_zero() -> None:
    assert report({}, {}).count("**Not run.**") == len(KINDS)
    assert in_short({}, {}).count("| not run | not run |") == len(KINDS)


def test_what_was_run_is_not_called_otherwise() -> None:
    ladder = {"ladder": {"rungs": 8, "foils_failed": 7, "ours_held": 8}}
    row = "| Ladder | 8 rungs | 7 of 8 foils failed; ours held on 8 of 8 |  |  |"
    assert row in in_short(ladder, {})
    assert report(ladder, {}).count("**Not run.**") == len(KINDS) - 1


def test_a_figure_that_was_not_recorded_is_no_zero() -> None:
    table = in_short({"ladder": {"rungs": 8}}, {})
    assert "| Ladder | 8 rungs | not recorded |" in table


def test_each_recorded_kind_says_in_short_what_came_of_it() -> None:
    evidence = recorded(FOLDER)
    kinds = evidence.keys() - {"histories_of_chaos", "histories_of_storm"}
    assert kinds <= set(KINDS)
    assert all("not recorded" not in summary_of(kind, evidence[kind]) for kind in kinds)


def test_parts_of_a_kind_are_figures_of_one(tmp_path: Path) -> None:
    for part, count in ("keys", 3), ("settings", 4):
        text = json.dumps({"tried": {part: count}, "violations": 0})
        (tmp_path / f"hostile_input--{part}.json").write_text(text)
    assert recorded(tmp_path) == {
        "hostile_input": {"tried": {"keys": 3, "settings": 4}, "violations": 0}
    }


def test_rows_of_figures_are_a_table() -> None:
    rows = [{"peer": "a|b", "overlaps": 3}, {"peer": "c", "overlaps": None}]
    page = report({"peers": {"counts": rows}}, {})
    assert "| peer | overlaps |\n| --- | --- |\n| a\\|b | 3 |\n| c | not run |" in page


def test_a_kind_that_nobody_foresaw_has_a_section() -> None:
    assert "## Long nights\n\n- hours: 8" in report({"long_nights": {"hours": 8}}, {})


def test_a_collected_kind_replaces_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "docs"
    for folder, kind, count in [(into, "model", 1), (into, "chaos", 2), (tmp_path, "chaos", 3)]:
        monkeypatch.setenv("REDLOCK_EVIDENCE_INTO", str(folder))
        record(kind, count=count)
    collect(tmp_path, into)
    assert recorded(into) == {"model": {"count": 1}, "chaos": {"count": 3}}


def test_the_page_says_which_share_of_each_room_is_mutated() -> None:
    [said] = re.findall(r"^The gate covers (\d+) % .*?: (.*); left out wholly: (.*)\.$",
                        PAGE.read_text(encoding="utf-8"), re.MULTILINE)  # fmt: skip
    whole, some, none = said
    shown = {room: int(percent) for percent, room in re.findall(r"(\d+) % of `(.*?)`", some)}
    shown |= dict.fromkeys(re.findall(r"`(.*?)`", none), 0)
    now = {room: 100 * share.lines / share.of for room, share in by_room(ALL).items()}
    covered = share_of(ALL)
    shown["all"], now["all"] = int(whole), 100 * covered.lines / covered.of
    assert shown.keys() == now.keys()
    # Not each line that is added makes the page false.
    assert {room for room in now if abs(shown[room] - now[room]) > 2} == set(), (
        "the code or the gate has changed; this makes the page true again, and runs nothing: "
        ".venv/bin/python -m tools.evidence.publication"
    )


# --- which code the figures are of ----------------------------------------------------------------


def test_each_recorded_run_has_a_commit_a_day_and_content() -> None:
    files = [file for file in FOLDER.glob("*.json") if "run" not in json.loads(file.read_text())]
    assert files == []
    for kind, of_kind in all_runs().items():
        for run in of_kind:
            assert re.fullmatch(r"[0-9a-f]{7,}", run.commit), kind
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", run.day), kind
            assert {*run.content} <= {*FILES[kind]}


def test_figures_speak_of_files_that_there_are() -> None:
    assert {*KINDS} <= FILES.keys()
    names = {name for files in FILES.values() for name in files}
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_a_page_shows_the_day_and_commit_of_each_figure() -> None:
    new, old = Run("abc1234", "2026-02-01", {}), Run("def5678", "2026-01-31", {})
    figures, of = {"ladder": {"rungs": 8}}, {"ladder": [new, old]}
    row = "| 8 rungs | not recorded | 2026-01-31, commit def5678 | changed since |"
    assert row in in_short(figures, of)
    assert "- run: 2026-01-31, commit def5678\n- rungs: 8" in report(figures, of)


def test_the_page_shows_whether_the_code_of_a_run_has_changed() -> None:
    figures, now = {"ladder": {"rungs": 8}}, Run(**run_now("ladder"))  # type: ignore[arg-type]
    other = dataclasses.replace(now, content=dict.fromkeys(now.content, "another"))
    for of, shown in [
        ([now], "today's code"),
        ([other], "changed since"),
        ([now, other], "changed since"),
        ([other, now], "changed since"),
    ]:
        assert f"| {now} | {shown} |\n" in in_short(figures, {"ladder": of})


def test_the_model_is_one_table_with_its_second_encoding() -> None:
    figures = {
        "model": {"states": {"no confirm": 818}, "verdicts": {"no confirm": "holds"},
                  "violations": 0},
        "promela": {"states": {"no confirm": 149}, "violations": 0},
    }  # fmt: skip
    assert "| no confirm | 818 | 149 | holds |" in report(figures, {})


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the figures of a kind speak of, without a repository."""
    monkeypatch.setattr(runs, "FILES", {"dreams": ("night", "one.py")})
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "a.py").write_text("a")
    (tmp_path / "one.py").write_text("one")
    return tmp_path


def test_a_run_is_of_today_until_its_files_change(tree: Path) -> None:
    run = Run(**run_now("dreams", tree))  # type: ignore[arg-type]
    assert run.changed("dreams", tree) == []
    (tree / "elsewhere.py").write_text("b")
    assert run.changed("dreams", tree) == []
    (tree / "night" / "a.py").write_text("b")
    assert run.changed("dreams", tree) == ["night"]


@pytest.mark.parametrize("change", ["added", "renamed", "removed"])
def test_a_file_that_comes_or_goes_is_a_change(tree: Path, change: str) -> None:
    before = digest("night", tree)
    match change:
        case "added":
            (tree / "night" / "b.py").write_text("")
        case "renamed":
            (tree / "night" / "a.py").rename(tree / "night" / "b.py")
        case _:
            (tree / "night" / "a.py").unlink()
    assert digest("night", tree) != before


def test_what_python_and_editors_leave_behind_is_no_change(tree: Path) -> None:
    before = digest("night", tree)
    (tree / "night" / "__pycache__").mkdir()
    (tree / "night" / "__pycache__" / "a.pyc").write_bytes(b"c")
    (tree / "night" / "a.py~").write_text("b")
    assert digest("night", tree) == before


def test_a_run_of_unknown_content_is_called_changed() -> None:
    run = Run("", "2026-01-31", {})
    assert told(*age_of("ladder", [run])) == "changed since: celery_redlock/redlock"
    assert str(oldest([run])) == "2026-01-31"


def test_a_run_that_is_too_old_fails_a_release_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "all_runs", lambda: {"ladder": [Run("abc1234", "2026-01-31", {})]})
    monkeypatch.setattr(runs, "commits_since", lambda *_: 51)
    assert [runs.main(arguments) for arguments in ([], ["--most", "51"])] == [0, 0]
    assert "changed since in 51 commits: celery_redlock/redlock" in capsys.readouterr().out
    assert runs.main(["--most", "50"]) == 1
    assert "run again, by make evidence or make performance: ladder" in capsys.readouterr().out


def makes_for_the_page(makefile: str) -> list[str]:
    """Return the targets that `make evidence` makes before it collects."""
    [targets] = re.findall(r"^RUNS := (.*)$", makefile, re.MULTILINE)
    return targets.split()  # type: ignore[no-any-return]


def test_make_evidence_runs_all_that_ordinary_tests_leave_out() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = makes_for_the_page(makefile)
    [ordinary] = re.findall(r"^ORDINARY = (.*)$", makefile, re.MULTILINE)
    recipes = "".join(
        re.findall(rf"^(?:{'|'.join(targets)}):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    )
    left_out = {*re.findall(r"not (\w+)", ordinary)} - {"benchmark"}  # `performance` makes `bench`
    assert "CONTROLS=1 LONG=1" in makefile
    left_out.remove("long")
    assert len(left_out) > 3
    assert [mark for mark in left_out if not re.search(rf"-m .*\b{mark}\b", recipes)] == []
    assert {"test", "simulate", "mutation", "performance", "hour"} <= {*targets}


def test_the_page_names_what_make_evidence_leaves_out() -> None:
    makefile, page = (ROOT / "Makefile").read_text(), PAGE.read_text(encoding="utf-8")
    [said] = re.findall(r"It leaves out (.*?)[;.] ", page)
    assert re.findall(r"`make (\w+)`", said) == ["versions", "pythons", "servers"]
    elsewhere = {"evidence", *re.findall(r"`make (\w+)`", said)}
    named = {*re.findall(r"`make (\w+)", page)}
    assert named - elsewhere <= {*makes_for_the_page(makefile)}


def test_make_evidence_takes_as_long_as_the_soak_on_the_page() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [recipe] = re.findall(r"^evidence:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    [seconds] = re.findall(r"CHAOS_SECONDS=\$\(or \$\(CHAOS_SECONDS\),(\d+)\)", recipe)
    assert int(seconds) >= recorded(FOLDER)["soak"]["seconds"]


def test_the_page_says_which_lifetimes_are_not_simulated() -> None:
    [said] = re.findall(r"^Not simulated, .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    seeds = [first + number for first in KINDS_OF_SEEDS[1:] for number in range(50)]
    simulated = {traffic_of(seed).lifetime for seed in seeds}
    named = {one.value for one in Lifetime if f"`{one.value}`" in said}
    assert named == {one.value for one in Lifetime} - simulated


def test_a_bug_that_was_picked_a_schedule_is_not_called_found_by_chance() -> None:
    picked: dict[str, Any] = {"violations": 0, "controls_missed": [], "controls": [{"bug": "a"}]}
    assert "each in one schedule that was picked for it" in summary_of("simulation", picked)[1]
    fresh = {**picked, "controls": [{"bug": "a", "after schedules": 1_200}]}
    assert (
        "1 of 1 known bugs found in at most 1,200 fresh schedules each"
        in (summary_of("simulation", fresh)[1])
    )
