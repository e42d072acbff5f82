"""The tables of docs/reference/endings.md say what the tests with real workers have seen."""

from __future__ import annotations

from dataclasses import astuple

from tests.support.judges.lifetime_table import FATES, STAGES, Fate
from tests.support.root import ROOT
from tools.docs.markdown import tables

HELD, BECOMES, LEGEND, *_ = tables(ROOT / "docs/reference/endings.md")


def test_the_page_says_what_a_message_holds() -> None:
    assert [tuple(row.values()) for row in HELD] == [
        (f'`"{lifetime.value}"`', *(stage.value for stage in astuple(stages)))
        for lifetime, stages in STAGES.items()
    ]


def test_the_page_says_what_becomes_of_a_second_call() -> None:
    assert [tuple(row.values()) for row in BECOMES] == [
        (f'`"{lifetime.value}"`', f'`"{policy.value}"`', *(fate.value for fate in astuple(fates)))
        for (lifetime, policy), fates in FATES.items()
    ]


def test_the_page_says_what_each_word_of_it_means() -> None:
    assert [next(iter(row.values())) for row in LEGEND] == [fate.value for fate in Fate]
