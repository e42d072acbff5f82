"""Format strings over the parameters of a task."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, datetime, timezone
from enum import Enum, IntEnum
from typing import NamedTuple

import pytest
from hypothesis import given

from celery_redlock.redlock.errors import ConfigurationError
from tests.support.calls import Plain, account_task, name, over_the_wire, values


class Color(str, Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Ratio(float, Enum):
    HALF = 0.5


class Place(NamedTuple):
    shop: str
    shelf: int


@given(values)
def test_the_worker_computes_the_readable_key_of_the_producer(value: object) -> None:
    assert name("{a}-{a!r}", value) == name("{a}-{a!r}", over_the_wire(value))


def test_a_format_string_stays_readable() -> None:
    assert name("{a}/{b!r}/{c:>4}", "x", "y", c=7) == "proj.sync:x/'y'/   7"


def test_a_format_string_walks_attributes_indexes_and_formats() -> None:
    when = datetime(2024, 5, 6, tzinfo=timezone.utc)
    text = "{account.id}-{items[0]}-{items[1][key]}-{when:%Y-%m}"

    found = name(text, Plain(), ["x", {"key": "y"}], when, run=account_task)

    assert found == "proj.sync:7-x-y-2024-05"


class Lazy:
    """Claims to be what it stands for, as a lazy text does."""

    kind = "lazy"
    __class__ = str  # type: ignore[assignment]


def test_a_proxy_keeps_its_attributes() -> None:
    assert isinstance(Lazy(), str)
    assert name("{account.kind}", Lazy(), run=account_task) == "proj.sync:lazy"


def test_an_index_finds_what_json_leaves_of_a_named_tuple() -> None:
    assert name("{items[0]}", None, Place("a", 1), run=account_task) == "proj.sync:a"
    assert name("{account.real}", True, run=account_task) == "proj.sync:1"


@pytest.mark.parametrize("items", [{1: "x"}, {"1": "x"}, ["1", "x"]])
def test_a_number_in_brackets_finds_a_key_before_and_after_json(items: object) -> None:
    assert name("{items[1]}", None, items, run=account_task) == "proj.sync:x"


@pytest.mark.parametrize(
    ("text", "arguments", "reason"),
    [
        ("{account.id}", [{"id": 1}], "AttributeError"),
        ("{account.id}", [None], "AttributeError"),
        ("{items[3]}", [1, [1]], "IndexError"),
        ("{items[key]}", [1, [1]], "TypeError"),
        ("{items[key]}", [1, {}], "KeyError"),
        ("{account:d}", ["text"], "ValueError"),
        ("{items:>9}", [1, []], "TypeError"),
        # What JSON leaves of these has no such part, though the producer's object has.
        ("{account.value}", [Color.RED], "AttributeError"),
        ("{account.name}", [Level.LOW], "AttributeError"),
        ("{account.name}", [Ratio.HALF], "AttributeError"),
        ("{account.shop}", [Place("a", 1)], "AttributeError"),
        ("{items[key]}", [1, defaultdict(int)], "KeyError"),
    ],
)
def test_a_field_that_does_not_fit_a_call_is_named(
    text: str, arguments: list[object], reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        name(text, *arguments, run=account_task)

    assert "task 'proj.sync': lock_key's field {" + text[1:5] in str(caught.value)
    assert f"({reason}); name a part that is in every call" in str(caught.value)


def test_an_object_that_shows_its_address_fits_no_call() -> None:
    with pytest.raises(ConfigurationError, match="its text holds a memory address"):
        name("{a}", Plain())


def test_text_that_looks_like_an_address_is_a_plain_argument() -> None:
    assert name("{a}", "<log at 0xdeadbeef>") == "proj.sync:<log at 0xdeadbeef>"
    assert name("{a}", ["<log at 0xdeadbeef>"]) == "proj.sync:['<log at 0xdeadbeef>']"


@pytest.mark.parametrize(
    "spec", [">201", "<1000000000", "0>12345", ".999f", "1000000000.2f", ">٩٩٩"]
)
def test_a_field_wider_than_a_key_is_refused_when_defined(spec: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\{a\} with a width .* over 200; make it nar"):
        name(f"{{a:{spec}}}", 1)


def test_a_field_as_wide_as_a_key_is_padded() -> None:
    assert name("{a:>200}", 1) == f"proj.sync:{'1':>200}"
    assert name("{a:%Y-%m-%d}", date(2026, 11, 22)) == "proj.sync:2026-11-22"
