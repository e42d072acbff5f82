"""Faults strike by a schedule that a seed repeats, and the judges see what goes wrong."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.faults.nemesis import Heal, Nemesis, Strikes, alone, combined
from tests.support.judges.takings import anomalies
from tests.support.judges.validity import boot_offset, holds_of, judge_tasks
from tests.support.processes.contenders import Taking
from tests.support.processes.inside import Note

KEY = "task/turn"
OFFSET = boot_offset()


def nothing(_: random.Random) -> Heal:
    return lambda: None


def shape(schedule: list[Any]) -> list[tuple[float, float, str, int]]:
    return [(one.at, one.lasts, one.nemesis.name, one.seed) for one in schedule]


MANY = [Nemesis(f"nemesis-{n}", nothing) for n in range(5)]


def test_a_seed_repeats_its_schedule() -> None:
    first = combined(MANY, seed=7, total=100.0)
    assert len(first) > 50
    assert shape(first) == shape(combined(MANY, seed=7, total=100.0))
    assert shape(first) != shape(combined(MANY, seed=8, total=100.0))


def test_no_fault_strikes_while_it_lasts() -> None:
    schedule = combined(MANY, seed=1, total=200.0)
    for name in {one.nemesis.name for one in schedule}:
        times = [(one.at, one.at + one.lasts) for one in schedule if one.nemesis.name == name]
        assert all(ended < begun for (_, ended), (begun, _) in itertools.pairwise(times))


def test_alone_each_strikes_when_the_one_before_is_healed() -> None:
    long = Nemesis("long", nothing, seconds=9.0)
    schedule = alone([MANY[0], long, *MANY[1:3]], seed=1, seconds=1.0, rest=0.5)
    assert [one.at for one in schedule] == [0.5, 2.0, 11.5, 13.0]
    assert [one.lasts for one in schedule] == [1.0, 9.0, 1.0, 1.0]


def test_what_is_struck_is_healed_though_it_is_left_early() -> None:
    said: list[str] = []

    def strike(_: random.Random) -> Heal:
        said.append("struck")
        return lambda: said.append("healed")

    [endless] = alone([Nemesis("endless", strike, seconds=1e6)], seed=1, seconds=1.0, rest=0.0)
    with Strikes([endless]) as strikes:
        eventually(lambda: said)
    assert said == ["struck", "healed"]
    assert [fault.name for fault in strikes.faults] == ["endless"]


def test_on_a_slow_machine_the_order_stays() -> None:
    said: list[str] = []

    def slowly(_: random.Random) -> Heal:
        said.append("struck")
        time.sleep(0.05)  # longer than all of the schedule
        return lambda: said.append("healed")

    nemeses = [Nemesis(f"slow-{n}", slowly) for n in range(3)]
    with Strikes(alone(nemeses, seed=1, seconds=0.01, rest=0.002)) as strikes:
        strikes.wait()
    assert said == ["struck", "healed"] * 3


def test_a_strike_that_fails_is_told() -> None:
    def fail(_: random.Random) -> Heal:
        raise OSError("no such victim")

    with Strikes(alone([Nemesis("odd", fail)], seed=1, seconds=0.0, rest=0.0)) as strikes:
        strikes.wait()
    assert strikes.errors == ["odd did not strike: OSError('no such victim')"]
    assert strikes.faults == []


# ---- the judge of tasks


def note(event: str, token: int, at: float, *, until: float = 0.0, **more: Any) -> Note:
    told = {"key": KEY, "asked_at": at + OFFSET - 0.1, "until": until + OFFSET} | more
    return Note(event, f"task-{token}", token, token, 0, at, told)


def judge(*notes: Note, deaths: dict[int, float] | None = None) -> Any:
    return judge_tasks(notes, deaths or {}, grace_s=1.0)


FIRST = [note("begin", 1, 1.0, until=2.0), note("valid", 1, 1.5, until=3.0)]


def test_clocks_that_were_not_read_together_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have to wait for a processor in between."""
    monotonic, late = time.monotonic, iter([5.0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + next(late, 0.0))
    assert boot_offset() == pytest.approx(OFFSET, abs=1e-3)


def test_a_lease_is_valid_until_it_was_last_renewed_for() -> None:
    [hold] = holds_of(FIRST, {})[KEY]
    assert hold.until == pytest.approx(3.0 + OFFSET, abs=1e-3)


def test_a_lease_ends_with_its_body_or_its_process() -> None:
    [hold] = holds_of([*FIRST, note("end", 1, 1.7)], {})[KEY]
    assert hold.until == pytest.approx(1.7 + OFFSET, abs=1e-3)
    [hold] = holds_of(FIRST, {1: 1.6})[KEY]
    assert hold.until == pytest.approx(1.6 + OFFSET, abs=1e-3)


def test_leases_one_after_the_other_are_well() -> None:
    judged = judge(*FIRST, note("end", 1, 1.7), note("begin", 2, 2.0, until=3.0))
    assert (judged.violations, judged.acquisitions) == ([], 2)


def test_leases_at_the_same_time_are_seen() -> None:
    judged = judge(*FIRST, note("begin", 2, 2.0, until=3.0))
    assert len(judged.overlaps) == 1
    assert judged.unfenced == []


def test_a_token_that_does_not_rise_is_seen() -> None:
    judged = judge(*FIRST, note("end", 1, 1.7), note("begin", 0, 2.0, until=3.0))
    assert len(judged.disorders) == len(judged.unfenced) == 1


def test_a_refused_write_of_a_valid_lease_is_seen() -> None:
    when = {"invoked": 1.2 + OFFSET, "completed": 1.3 + OFFSET}
    judged = judge(*FIRST, note("write", 1, 1.3, accepted=False, **when))
    assert (len(judged.refused), judged.stale) == (1, 0)


def test_a_refused_write_of_a_lease_that_is_over_is_the_tokens_work() -> None:
    when = {"invoked": 3.2 + OFFSET, "completed": 3.3 + OFFSET}
    judged = judge(*FIRST, note("write", 1, 3.3, accepted=False, **when))
    assert (judged.violations, judged.stale) == ([], 1)


def call(event: str, number: int, **more: Any) -> Note:
    return Note(event, None, None, 0, 0, 0.5, {"call": f"task-{number}", "key": KEY} | more)


def test_a_call_that_nothing_became_of_is_lost() -> None:
    judged = judge(call("call", 5), call("published", 5), call("call", 6), call("unsure", 6))
    assert judged.lost == ["task-5"]


def test_a_call_that_was_skipped_for_a_holder_that_was_alive_is_well() -> None:
    skipped = {"outcome": "skip", "holder": "task-1@host"}
    calls = [call("call", 5), call("published", 5)]
    conflict = Note("conflict", None, None, 0, 0, 2.4, {"call": "task-5", **skipped})
    assert judge(*FIRST, *calls, conflict).violations == []
    late = Note("conflict", None, None, 0, 0, 2.6, {"call": "task-5", **skipped})
    assert len(judge(*FIRST, *calls, late).idle_skips) == 1


# ---- the judge of contenders


def taking(token: int | None, won_at: float, wrote_at: float, released_at: float) -> Taking:
    return Taking(int(won_at), token, won_at - 0.1, won_at, won_at + 1.0, wrote_at, released_at)


def test_a_late_write_is_refused_by_its_token_alone() -> None:
    stale, fresh = (1.0, 3.5, 3.6), (2.5, 2.6, 2.7)
    fenced = anomalies([taking(1, *stale), taking(2, *fresh)], {})
    assert (fenced.late_writes, fenced.refused_writes, fenced.total) == (0, 1, 0)
    bare = anomalies([taking(None, *stale), taking(None, *fresh)], {})
    assert (bare.late_writes, bare.refused_writes, bare.total) == (1, None, 1)


def test_a_release_of_another_ones_lock_is_seen() -> None:
    stale, victim = taking(None, 1.0, 1.1, 3.0), taking(None, 2.5, 3.3, 3.4)
    third = taking(None, 3.02, 3.1, 3.2)
    found = anomalies([stale, victim, third], {})
    assert (found.overlaps, found.foreign_releases) == (1, 1)
    assert anomalies([stale, victim], {}).foreign_releases == 0


def test_a_lock_of_a_dead_process_is_not_held() -> None:
    dead, next_one = taking(None, 1.0, 1.1, 9.0), taking(None, 1.5, 1.6, 1.7)
    assert anomalies([dead, next_one], {}).overlaps == 1
    assert anomalies([dead, next_one], {1: 1.4 - OFFSET}).overlaps == 0
