"""A task's options: who decides, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from celery import Celery, Task
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.config.declared_options import (
    declared_options,
    lock_options,
    refuse_per_call,
)
from celery_redlock.config.options import (
    ALLOWED,
    KNOWN_OPTIONS,
    Lifetime,
    LockOptions,
    OnConflict,
    OnLost,
    OnUnavailable,
)
from celery_redlock.redlock.errors import ConfigurationError

CHOICES: dict[str, type[Lifetime | OnConflict | OnUnavailable | OnLost]] = {
    "lock_lifetime": Lifetime,
    "lock_on_conflict": OnConflict,
    "lock_on_unavailable": OnUnavailable,
    "lock_on_lost": OnLost,
}
TIMES = ["lock_ttl", "lock_delay", "lock_min_hold", "lock_max_hold", "lock_wait", "lock_queue_ttl"]


def options(
    declared: Mapping[str, object] | None = None,
    defaults: dict[str, object] | None = None,
    max_ttl: float = 60.0,
) -> LockOptions:
    return lock_options("proj.sync", declared or {}, defaults or {}, max_ttl=max_ttl)


def refusal(declared: Mapping[str, object], defaults: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        options(declared, defaults)
    message = str(caught.value)
    assert message.startswith("task 'proj.sync': ")
    return message


# --- who decides ----------------------------------------------------------------------------------


def test_without_anything_the_built_in_defaults_count() -> None:
    assert options() == LockOptions(
        ttl=30.0,
        key=None,
        lifetime=Lifetime.WHILE_EXECUTING,
        on_conflict=OnConflict.SKIP,
        on_unavailable=OnUnavailable.RESCHEDULE,
        on_lost=OnLost.ABORT,
        delay=0.0,
        min_hold=0.0,
        max_hold=None,
        wait=None,
        queue_ttl=3600.0,
        conflict_result=None,
    )


EXAMPLES: dict[str, tuple[object, object]] = {
    "lock_ttl": (10, 20.5),
    "lock_key": ("{a}", "{b}"),
    "lock_lifetime": ("while_executing", "while_executing"),
    "lock_on_conflict": ("raise", "reschedule"),
    "lock_on_unavailable": ("raise", "run"),
    "lock_on_lost": ("abort", "continue"),
    "lock_delay": (0, 2),
    "lock_min_hold": (0, 2),
    "lock_max_hold": (5, 7),
    "lock_wait": (1, 3),
    "lock_queue_ttl": (50, 70),
    "lock_conflict_result": ("one", ["other"]),
}
NEEDS: dict[str, dict[str, object]] = {
    "lock_wait": {"lock_on_conflict": "wait"},
    "lock_conflict_result": {"lock_on_conflict": "complete"},
}
"""What an option needs beside it."""


@pytest.mark.parametrize("option", sorted(KNOWN_OPTIONS))
def test_the_task_overrides_the_setting_and_that_the_default(option: str) -> None:
    one, other = EXAMPLES[option]
    reserves = {"lock_lifetime": "until_executed"} if option == "lock_queue_ttl" else {}
    needs = NEEDS.get(option, reserves)
    field = option.removeprefix("lock_")

    assert getattr(options({**needs, option: one}, {option: other}), field) == one
    assert getattr(options(needs, {option: other}), field) == other
    assert getattr(options({**needs, option: other}), field) == other


@pytest.mark.parametrize("option", sorted(KNOWN_OPTIONS - NEEDS.keys()))
def test_none_on_the_task_leaves_it_to_the_setting(option: str) -> None:
    _, other = EXAMPLES[option]

    assert getattr(options({option: None}, {option: other}), option.removeprefix("lock_")) == other
    assert options({option: None}) == options()


@pytest.mark.parametrize(("option", "needs"), NEEDS.items())
def test_none_on_the_task_is_a_value_where_it_means_something(
    option: str, needs: dict[str, object]
) -> None:
    _, other = EXAMPLES[option]

    found = options({**needs, option: None}, {option: other})

    assert getattr(found, option.removeprefix("lock_")) is None
    assert options({option: None}) == options()


def test_a_setting_without_use_for_this_task_is_left_aside() -> None:
    found = options({}, {"lock_wait": 5, "lock_conflict_result": "old"})

    assert found.wait is None
    assert found.conflict_result is None


def test_the_built_in_ttl_gives_way_to_a_smaller_max_ttl() -> None:
    assert options(max_ttl=10.0).ttl == 10.0


def test_a_member_of_the_enum_is_as_good_as_its_name() -> None:
    assert options({"lock_on_conflict": OnConflict.RAISE}).on_conflict is OnConflict.RAISE


def test_options_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        options().ttl = 5  # type: ignore[misc]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("option", CHOICES)
@pytest.mark.parametrize("given_value", ["", "SKIP", "Abort", "nothing like it", b"skip", 1, True])
def test_a_choice_has_to_be_one_of_the_names(option: str, given_value: object) -> None:
    message = refusal({option: given_value})

    known = ", ".join(member.value for member in CHOICES[option])
    assert f"{option} = {given_value!r} is unknown; known values: {known}; " in message


@pytest.mark.parametrize(
    ("option", "wrong", "meant"),
    [
        ("lock_on_conflict", "skipp", "skip"),
        ("lock_on_conflict", "reshedule", "reschedule"),
        ("lock_lifetime", "while-executing", "while_executing"),
        ("lock_on_unavailable", "rase", "raise"),
        ("lock_on_lost", "aborted", "abort"),
    ],
)
def test_a_misspelt_choice_is_told_the_closest_one(option: str, wrong: str, meant: str) -> None:
    assert f'; did you mean "{meant}"?' in refusal({option: wrong})
    assert refusal({option: "zzz"}).endswith("; choose one of them")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lock_tll", "lock_ttl"), ("lock_on_conflicts", "lock_on_conflict"), ("lock_maxhold", None)],
)
def test_an_unknown_option_is_refused_with_the_closest_and_all(
    name: str, meant: str | None
) -> None:
    message = refusal({name: 5})

    assert f"{name} = 5 is an unknown lock option" in message
    assert f"did you mean {meant or 'lock_max_hold'}?" in message
    assert message.endswith(f"Known options: {', '.join(sorted(KNOWN_OPTIONS))}")


def test_an_unknown_option_is_refused_even_if_it_is_none() -> None:
    message = refusal({"lock_of_somebody_else": None})
    assert (
        "lock_of_somebody_else = None is an unknown lock option; remove or rename it. " in message
    )


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize(
    "value", [-1, -0.001, math.nan, math.inf, -math.inf, 10**12, 10**400, 1e300]
)
def test_a_time_out_of_range_is_refused(option: str, value: float) -> None:
    assert f"{option} = {value!r} is out of range; give seconds" in refusal({option: value})


@pytest.mark.parametrize("option", sorted({*TIMES} - {"lock_delay", "lock_min_hold"}))
@pytest.mark.parametrize("value", [0, 0.0, 0.0009])
def test_less_than_redis_can_count_is_refused(option: str, value: float) -> None:
    assert f"{option} = {value!r} is out of range" in refusal({option: value})


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize("value", [True, False, [], {}, ..., 1j, b"30"], ids=repr)
def test_a_time_that_is_no_number_is_refused(option: str, value: object) -> None:
    message = refusal({option: value})

    assert f"{option} = {value!r} is of type {type(value).__name__}, not a number" in message


@pytest.mark.parametrize("option", TIMES)
def test_a_number_in_quotes_is_told_so(option: str) -> None:
    assert f"{option} = '30' is of type str, not a number; write it without quotes" in refusal(
        {option: "30"}
    )


def test_a_ttl_beyond_max_ttl_is_refused_with_both_remedies() -> None:
    assert options({"lock_ttl": 60}).ttl == 60.0

    message = refusal({"lock_ttl": 61})

    assert "lock_ttl = 61 is longer than redlock_max_ttl (60 s)" in message
    assert "raise redlock_max_ttl or lower lock_ttl" in message


def test_a_wrong_setting_is_named_as_the_setting() -> None:
    for option, value in {"lock_ttl": "5", "lock_on_lost": "x", "lock_wait": -1}.items():
        message = refusal({}, {option: value})

        assert f"{option} (from the setting red{option}) = {value!r}" in message


def test_a_min_hold_longer_than_max_hold_is_refused() -> None:
    assert options({"lock_min_hold": 5, "lock_max_hold": 5}).min_hold == 5.0

    message = refusal({"lock_min_hold": 6, "lock_max_hold": 5})

    assert message.endswith(
        "lock_min_hold = 6 is longer than lock_max_hold (5 s); "
        "lower lock_min_hold or raise lock_max_hold"
    )


def test_a_delay_that_is_too_long_beside_the_ttl_is_refused() -> None:
    """The nodes keep the lock for both, and a restarted node's guard is as long as max_ttl."""
    assert options({"lock_ttl": 20, "lock_delay": 40}).delay == 40.0

    message = refusal({"lock_ttl": 20, "lock_delay": 41})

    assert (
        "lock_delay = 41 and a ttl of 20 s are together longer than redlock_max_ttl (60 s); "
        "raise redlock_max_ttl, or lower lock_delay or lock_ttl"
    ) in message
    assert "lock_delay = 31 and a ttl of 30 s" in refusal({"lock_delay": 31})
    # A period is no lease.
    assert options({"lock_lifetime": "until_expired", "lock_ttl": 900}).delay == 0.0


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [("lock_wait", 5, "wait"), ("lock_conflict_result", "x", "complete")],
)
def test_an_option_without_its_policy_is_refused(option: str, value: object, needed: str) -> None:
    for policy in {"skip", "complete", "raise", "reschedule", "wait"} - {needed}:
        message = refusal({option: value, "lock_on_conflict": policy})

        assert f'{option} = {value!r} has no effect with lock_on_conflict="{policy}"' in message
        assert f'set lock_on_conflict="{needed}"' in message
    assert options({option: value}, {"lock_on_conflict": needed}) == options(
        {option: value, "lock_on_conflict": needed}
    )


@pytest.mark.parametrize("lifetime", list(Lifetime))
@pytest.mark.parametrize("policy", list(OnConflict))
def test_a_policy_is_refused_with_lifetimes_it_does_not_fit(
    lifetime: Lifetime, policy: OnConflict
) -> None:
    declared = {"lock_lifetime": lifetime.value, "lock_on_conflict": policy.value}
    if policy in ALLOWED[lifetime]:
        assert options(declared).lifetime is lifetime
        assert options(declared).on_conflict is policy
    else:
        assert f'does not go with lock_lifetime="{lifetime.value}"' in refusal(declared)


@pytest.mark.parametrize(
    "refused",
    [
        ("until_expired", "coalesce"),
        ("until_executed", "coalesce"),
        ("until_executing", "wait"),
        ("until_expired", "reschedule"),
    ],
)
def test_what_would_wait_for_nothing_or_lose_an_event_is_refused(refused: tuple[str, str]) -> None:
    lifetime, policy = refused
    message = refusal({"lock_lifetime": lifetime, "lock_on_conflict": policy})
    assert f"lock_on_conflict = {policy!r} does not go with" in message
    assert "choose one of complete, raise, " in message
    assert message.endswith(', or lock_lifetime="until_and_while_executing"')


@pytest.mark.parametrize("option", ["lock_min_hold", "lock_max_hold", "lock_delay"])
def test_a_hold_is_refused_with_a_lifetime_that_holds_nothing(option: str) -> None:
    """Nothing is held while the task runs."""
    for lifetime in ("until_executing", "until_expired"):
        message = refusal({"lock_lifetime": lifetime, option: 5})

        assert message.endswith(
            f'{option} = 5 has no effect with lock_lifetime="{lifetime}"; '
            "remove it: no lock is held there while the task runs"
        )
        # A setting is for the tasks that can use it.
        found = options({"lock_lifetime": lifetime}, {option: 5})
        assert found.lifetime.value == lifetime
        assert found.delay == 0.0


@pytest.mark.parametrize("option", ["lock_min_hold", "lock_delay"])
def test_a_hold_of_zero_goes_with_every_lifetime(option: str) -> None:
    assert options({"lock_lifetime": "until_expired", option: 0}).min_hold == 0.0
    assert f"{option} = 1 has no effect" in refusal({"lock_lifetime": "until_expired", option: 1})


@pytest.mark.parametrize(
    ("lifetime", "remedy"),
    [("until_expired", "the period is lock_ttl"), ("while_executing", "begins at publish")],
)
def test_a_queue_ttl_is_refused_without_a_reservation(lifetime: str, remedy: str) -> None:
    message = refusal({"lock_lifetime": lifetime, "lock_queue_ttl": 60})
    assert f'lock_queue_ttl = 60 has no effect with lock_lifetime="{lifetime}"' in message
    assert remedy in message
    assert options({"lock_lifetime": lifetime}, {"lock_queue_ttl": 60}).queue_ttl == 60


def test_a_ttl_that_no_lease_could_have_is_refused() -> None:
    assert "lock_ttl = 0.009 is out of range" in refusal({"lock_ttl": 0.009})
    assert options({"lock_ttl": 0.01}).ttl == 0.01
    # No lease is held under a throttle.
    assert options({"lock_ttl": 0.001, "lock_lifetime": "until_expired"}).ttl == 0.001


def test_a_throttle_may_be_longer_than_any_lease() -> None:
    assert options({"lock_lifetime": "until_expired", "lock_ttl": 86_400}).ttl == 86_400
    assert "redlock_max_ttl" in refusal({"lock_lifetime": "until_executed", "lock_ttl": 86_400})


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
    st.sampled_from([member.value for choice in CHOICES.values() for member in choice]),
    st.sampled_from([object, len, Lifetime.WHILE_EXECUTING]),
)
checked_here = sorted(KNOWN_OPTIONS - {"lock_key", "lock_conflict_result"})


@given(st.sampled_from(checked_here), anything, st.booleans())
def test_any_value_is_taken_or_refused_by_the_name_of_its_option(
    option: str, value: Any, from_setting: bool
) -> None:
    given_options = {option: value}
    try:
        found = options(*(({}, given_options) if from_setting else (given_options, {})))
    except ConfigurationError as exc:
        assert option in str(exc)  # noqa: PT017 - not raising is fine, too
        assert "proj.sync" in str(exc)  # noqa: PT017
    else:
        taken = getattr(found, option.removeprefix("lock_"))
        unused = option == "lock_wait" and taken is None
        assert value is None or unused or taken == value


@given(st.text("abcdefghijklmnopqrstuvwxyz_", max_size=12), anything)
def test_any_unknown_name_is_refused_by_name(name: str, value: object) -> None:
    option = f"lock_{name}"
    if option not in KNOWN_OPTIONS:
        assert option in refusal({option: value})


@given(st.dictionaries(st.sampled_from(sorted(KNOWN_OPTIONS)), anything, max_size=5))
def test_no_combination_raises_anything_else(declared: dict[str, object]) -> None:
    try:
        found = options(declared)
    except ConfigurationError:
        return
    assert 0 < found.ttl <= 60.0
    assert found.max_hold is None or found.min_hold <= found.max_hold


@pytest.mark.parametrize(
    ("given_options", "problem"),
    [
        ({}, None),
        ({"countdown": 3, "priority": 5}, None),
        ({"unique_on": None}, None),  # a value that is none of the package's
        ({"lock_ttl": 5}, "lock_ttl is not a per-call option; set it where the task is defined"),
        (
            {"raise_on_duplicate": False, "countdown": 3},
            (
                "raise_on_duplicate = False is an option of celery-singleton, which has no "
                "effect here; remove it, where the task is defined"
            ),
        ),
    ],
)
def test_options_of_locks_are_refused_for_a_single_call(
    given_options: dict[str, object], problem: str | None
) -> None:
    class Ship(Task):  # type: ignore[type-arg]
        name = "ship"

    if problem is None:
        refuse_per_call(Ship(), given_options)
    else:
        with pytest.raises(ConfigurationError) as caught:
            refuse_per_call(Ship(), given_options)
        assert str(caught.value) == f"task 'ship': {problem}"


# --- what a task declares -------------------------------------------------------------------------


def test_the_nearest_class_decides() -> None:
    class Company(Task):  # type: ignore[type-arg]
        lock_ttl = 10
        lock_min_hold = 1

    class Mixin:
        lock_ttl = 20

    class Mine(Mixin, Company):
        lock_on_lost = "continue"
        other = 5

    assert declared_options(Mine) == {
        "lock_ttl": 20,
        "lock_min_hold": 1,
        "lock_on_lost": "continue",
    }


def test_a_subclass_takes_an_option_back_with_none() -> None:
    class Company:
        lock_ttl: int | None = 10

    class Mine(Company):
        lock_ttl = None

    declared = declared_options(Mine)

    assert declared == {"lock_ttl": None}
    assert options(declared, {"lock_ttl": 15}).ttl == 15.0


def test_a_function_as_lock_key_is_never_bound() -> None:
    def choose(account: object) -> str:
        return "x"

    class Wrapped:
        lock_key = staticmethod(choose)

    class Bare:
        lock_key = choose

    assert declared_options(Wrapped)["lock_key"] is choose
    assert declared_options(Bare)["lock_key"] is choose


def test_options_of_decorator_and_annotations_are_found() -> None:
    def choose(account: object) -> str:
        return "x"

    app = Celery("proj", set_as_current=False)
    app.conf.task_annotations = {"sync": {"lock_ttl": 7}}

    @app.task(name="sync", shared=False, lock_key=choose, lock_on_lost="continue", lock_ttl=5)
    def sync(account: object) -> None: ...

    assert declared_options(type(app.tasks["sync"])) == {
        "lock_key": choose,
        "lock_on_lost": "continue",
        "lock_ttl": 7,
    }
