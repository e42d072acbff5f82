"""The judge of a fight sees what is wrong."""

from __future__ import annotations

from pathlib import Path

from tests.support.judges.fight import Hold, disorders, overlaps, read_holds, twins


def hold(token: int, asked_at: float, won_at: float, until: float) -> Hold:
    return Hold(token, token, asked_at, won_at, until)


A = hold(1, 0.0, 1.0, 2.0)


def test_one_after_the_other_is_well() -> None:
    holds = [A, hold(2, 1.5, 2.0, 3.0), hold(3, 2.9, 3.5, 4.0)]
    assert overlaps(holds) == []
    assert disorders(holds) == []
    assert twins(holds) == []


def test_two_at_a_time_are_seen() -> None:
    late = hold(2, 0.5, 1.9, 3.0)
    assert overlaps([late, A]) == [(A, late)]


def test_one_inside_another_is_seen_and_so_is_the_next() -> None:
    long, inside, after = hold(1, 0, 1, 10), hold(2, 0, 2, 3), hold(3, 0, 4, 5)
    assert overlaps([after, long, inside]) == [(long, inside), (long, after)]


def test_a_hold_noted_after_its_deadline_held_nothing() -> None:
    assert overlaps([A, hold(2, 0.5, 1.5, 1.4)]) == []


def test_a_token_that_is_smaller_than_one_before_is_seen() -> None:
    larger = hold(9, 0, 1, 2)
    assert disorders([larger, hold(8, 1.5, 2, 3)]) == [(9, hold(8, 1.5, 2, 3))]


def test_the_largest_token_before_counts_not_the_last() -> None:
    holds = [hold(9, 0, 1, 2), hold(5, 0.5, 3, 4), hold(7, 3.5, 5, 6)]
    assert disorders(holds) == [(9, holds[2])]


def test_tokens_of_concurrent_acquisitions_need_no_order() -> None:
    """A token asked for before the other was granted may be the smaller one."""
    assert disorders([hold(9, 0, 1, 2), hold(8, 0.9, 2, 3)]) == []


def test_a_token_that_is_had_twice_is_seen() -> None:
    assert twins([A, hold(2, 1, 2, 3), hold(1, 5, 6, 7)]) == [1]


def test_a_story_is_read_to_where_it_breaks_off(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(
        '{"who": 1, "token": 7, "asked_at": 1.0, "won_at": 2.0, "until": 5.0}\n'
        '{"token": 7, "extended": 8.0}\n'
        '{"token": 7, "over": 6.0}\n'
        '{"who": 1, "token": 9, "asked_at": 7.0, "won_at": 8.0, "until": 12.0}\n'
    )
    assert read_holds(tmp_path) == [Hold(1, 7, 1.0, 2.0, 6.0), Hold(1, 9, 7.0, 8.0, 12.0)]


def test_a_token_that_one_process_had_twice_is_seen(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(
        '{"who": 1, "token": 7, "asked_at": 1.0, "won_at": 2.0, "until": 5.0}\n'
        '{"token": 7, "over": 4.0}\n'
        '{"who": 1, "token": 7, "asked_at": 6.0, "won_at": 7.0, "until": 9.0}\n'
        '{"token": 7, "over": 8.0}\n'
    )
    holds = read_holds(tmp_path)
    assert holds == [Hold(1, 7, 1.0, 2.0, 4.0), Hold(1, 7, 6.0, 7.0, 8.0)]
    assert twins(holds) == [7]
