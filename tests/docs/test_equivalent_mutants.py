"""The report of equivalent mutants has each that is known, with its reason."""

from __future__ import annotations

from tools.docs.equivalent_mutants_page import report
from tools.mutation.gate import ALL, LEFT_OUT
from tools.mutation.scores import equivalents
from tools.mutation.share import share_of


def test_the_report_has_each_equivalent_mutant() -> None:
    shown = report()
    assert [one for one in equivalents() if f"| {one.reason} |" not in shown] == []
    assert shown.count("\n| `") == len(equivalents())


def test_reports_say_how_much_of_the_package_is_mutated() -> None:
    covered = share_of(ALL)
    assert f"{covered.lines / covered.of:.0%}" in report()
    assert f"in {len(ALL)} files" in report()


def test_the_report_has_each_file_that_is_left_out_and_why() -> None:
    shown = report()
    for file, why in LEFT_OUT.items():
        [row] = [line for line in shown.splitlines() if line.startswith(f"| {why} |")]
        assert f"`{file}`" in row
