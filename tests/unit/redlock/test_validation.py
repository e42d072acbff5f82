"""What is refused before anything is done with it."""

from __future__ import annotations

import math
import re
import time
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import Observer
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.validation import (
    address_of,
    check_count,
    check_key,
    check_nodes,
    check_prefix,
    check_seconds,
    lease_times_ms,
    seconds_given,
)
from tests.support.calls import Colour, Misnamed

TOO_LONG = (
    f"key must be at most 1024 bytes long, got 1026: '{'é' * 200}… (513 characters)'; shorten it, "
    "or end it with a digest of the rest"
)


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.001, 1e9])
def test_seconds_may_be(value: float) -> None:
    check_seconds("ttl", value)


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, math.nan, math.inf, -math.inf, "5", b"5", None, True, False, [5], Decimal(5)],
    ids=repr,
)
@pytest.mark.parametrize("above_zero", [False, True])
def test_seconds_may_not_be(value: object, above_zero: bool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_seconds("max_ttl", value, above_zero=above_zero)
    sign = ">" if above_zero else ">="
    assert str(caught.value) == f"max_ttl must be a number of seconds {sign} 0, got {value!r}"


def test_seconds_may_be_without_end_only_where_that_is_meant() -> None:
    check_seconds("wait", math.inf, endless=True)
    check_seconds("wait", 0, endless=True)
    for value in (-math.inf, math.nan, -1):
        with pytest.raises(ConfigurationError, match="wait must be a number of seconds >= 0, got"):
            check_seconds("wait", value, endless=True)


@pytest.mark.parametrize("endless", [False, True])
def test_a_number_that_no_float_can_be_is_refused(endless: bool) -> None:
    # It would fail later, wherever it is first added to a time.
    with pytest.raises(ConfigurationError, match="wait must be at most 1"):
        check_seconds("wait", 10**400, endless=endless)


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["above", "below"])
@pytest.mark.parametrize("above_zero", [False, True])
def test_a_number_that_python_does_not_write_is_refused(value: int, above_zero: bool) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^ttl must be .*, got an int that Python refuses"
    ):
        check_seconds("ttl", value, above_zero=above_zero)
    with pytest.raises(
        ConfigurationError, match=r"^ttl must be .*, got an int that Python refuses"
    ):
        check_count("ttl", -abs(value))


_NEVER_AWAITED = (
    "must be a plain function: an async one would never be awaited; have it schedule the "
    "coroutine, with asyncio.run_coroutine_threadsafe(…)"
)


async def deferred(_: object) -> None: ...


@pytest.mark.parametrize(
    ("on_lost", "message"),
    [
        (5, "on_lost must be a callable, got int"),
        ("", "on_lost must be a callable, got str"),
        (deferred, f"on_lost {_NEVER_AWAITED}"),
    ],
)
def test_on_lost_is_a_plain_callable(on_lost: Any, message: str) -> None:
    redlock = Redlock(["redis://a"])
    for use in (redlock.lock, redlock.acquire):
        with pytest.raises(ConfigurationError) as caught:
            use("k", on_lost=on_lost)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("observers", "message"),
    [
        (None, "observers must be a list of callables, got NoneType"),
        (print, "observers must be a list of callables, got builtin_function_or_method"),
        ([print, None], "each of observers must be a callable, got NoneType"),
        ("x", "each of observers must be a callable, got str"),
        ([deferred], f"each of observers {_NEVER_AWAITED}"),
    ],
)
def test_observers_are_a_list_of_callables(observers: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Redlock(["redis://a"], observers=cast("list[Observer]", observers))
    assert str(caught.value) == message


@pytest.mark.parametrize("url", ["redis://a:0", "rediss://me:secret@a:0/1", "redis://a:65536"])
def test_a_port_that_no_server_has_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="a port of 1 to 65535") as caught:
        address_of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [10.5, 11, 1e300])
def test_seconds_may_have_an_upper_limit(value: float) -> None:
    check_seconds("node_timeout", 10, longest=10)
    check_seconds("node_timeout", 10.0, longest=10)
    with pytest.raises(ConfigurationError, match="node_timeout must be at most 10 seconds, got 1"):
        check_seconds("node_timeout", value, longest=10)


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_zero_is_refused_where_nothing_would_be_left(value: float) -> None:
    with pytest.raises(ConfigurationError, match="ttl must be a number of seconds > 0, got"):
        check_seconds("ttl", value, above_zero=True)


@pytest.mark.parametrize("key", ["k", " ", "{", "é😀", "k" * 1024, "\n"])
def test_any_text_may_name_a_lock(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "key must be a string, got NoneType"),
        (5, "key must be a string, got int"),
        (b"x", "key must be a string, got bytes"),
        (["x"], "key must be a string, got list"),
        ("", "key must not be empty; give one such as 'invoice:42'"),
        ("a\ud800", "key 'a\\ud800' can't be encoded as UTF-8; replace its lone surrogates"),
        ("é" * 513, TOO_LONG),
    ],
)
def test_what_can_not_name_a_lock_is_refused(key: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_key(key)
    assert str(caught.value) == message


def test_the_key_of_a_lock_to_release_may_be_of_any_length() -> None:
    assert check_key("k" * 1025, may_exist=True) == "k" * 1025


@pytest.mark.parametrize("text", [Colour.RED, Misnamed("data")])
def test_text_of_a_subclass_becomes_its_data(text: str) -> None:
    [url] = check_nodes([text])
    for checked in (check_key(text), check_prefix(text), url):
        assert (type(checked), checked) == (str, str.__str__(text))


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_an_odd_number_of_nodes_is_taken_in_order(count: int) -> None:
    urls = [f"redis://node-{number}" for number in range(count)]
    assert check_nodes(tuple(urls)) == urls


@pytest.mark.parametrize("count", [0, 2, 4])
def test_an_even_number_of_nodes_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"must be odd \(1, 3, 5 …\), got {count};"):
        check_nodes([f"redis://node-{number}" for number in range(count)])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("redis://one", "nodes must be a list of URLs, got str"),
        (b"redis://one", "nodes must be a list of URLs, got bytes"),
        (None, "nodes must be a list of URLs, got NoneType"),
        (3, "nodes must be a list of URLs, got int"),
        ({"redis://one": 1}, "nodes must be a list of URLs, got dict"),
        ([None], "each of nodes must be a URL such as redis://host:6379"),
        ([b"redis://one"], "each of nodes must be a URL such as redis://host:6379"),
    ],
)
def test_what_is_no_list_of_urls_is_refused(nodes: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_nodes(nodes)
    assert str(caught.value) == message


def test_a_url_with_a_lone_surrogate_is_refused_and_not_shown() -> None:
    # As from an environment variable that is not UTF-8.
    for url in ("redis://h\udcf6st:6379", "redis://user:s\udcf6same@host:6379"):
        with pytest.raises(ConfigurationError, match="each byte that is not UTF-8 as") as caught:
            check_nodes([url])
        assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://a:1/0", "a:1"),
        ("redis://user:sesame@a:1/0", "a:1"),
        ("redis://:ses@me@a:1", "a:1"),
        ("redis://a:1?password=sesame", "a:1"),
        ("redis://a:1?password=sesame@b", "a:1"),
        ("unix://user:sesame@/run/redis.sock", "unix:/run/redis.sock"),
        ("unix:///run/redis.sock?db=1&password=sesame", "/run/redis.sock"),
    ],
)
def test_a_node_named_twice_is_named_without_its_password(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_nodes([url, "redis://b:1", url])
    assert name in str(caught.value)
    assert "named twice" in str(caught.value)
    assert "sesame" not in str(caught.value)
    assert "ses@me" not in str(caught.value)


@pytest.mark.parametrize(
    "password", ["se/cret", "se?cret", "se#cret", "se:12/cret", "se/cr?et", "6379/0"]
)
@pytest.mark.parametrize("url", ["redis://user:{}@redis-a:6379/0", "unix://user:{}@/redis-a.sock"])
def test_a_password_that_is_not_quoted_is_refused_and_not_shown(password: str, url: str) -> None:
    # urlsplit ends the host where the password has one of these: the rest looks like a path.
    with pytest.raises(ConfigurationError, match="can't be read") as refused:
        address_of(url.format(password))
    assert not any(part in str(refused.value) for part in ("cret", "redis-a"))
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("url", ["unix://redis.sock", "unix:redis.sock", "unix://run/redis.sock"])
def test_the_path_of_a_unix_socket_is_absolute(url: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        address_of(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://user:secret@redis-a:7000/2", "redis-a:7000"),
        ("rediss://redis-a", "redis-a:6379"),
        ("redis://", "localhost:6379"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix:/run/redis.sock"),
        ("redis://redis-a?password=s@cret", "redis-a:6379"),
    ],
)
def test_a_node_s_name_is_its_address(url: str, name: str) -> None:
    assert address_of(url) == name


class Refused(Exception):
    """What a user has configured is refused."""


def refuse(problem: str, remedy: str) -> NoReturn:
    raise Refused(f"{problem}; {remedy}")


@pytest.mark.parametrize("value", [0.001, 1, 2.5, 315_360_000])
def test_configured_seconds_are_taken(value: float) -> None:
    taken = seconds_given(value, refuse)
    assert (taken, type(taken)) == (value, float)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5", "is of type str, not a number; write it without quotes"),
        (None, "is of type NoneType, not a number; give seconds"),
        (True, "is of type bool, not a number; give seconds"),
        (0.0009, "is out of range; give seconds, at least 0.001 and at most 315360000 (ten years)"),
        (
            315_360_001,
            "is out of range; give seconds, at least 0.001 and at most 315360000 (ten years)",
        ),
        (
            math.nan,
            "is out of range; give seconds, at least 0.001 and at most 315360000 (ten years)",
        ),
    ],
    ids=repr,
)
def test_configured_seconds_are_refused(value: object, message: str) -> None:
    with pytest.raises(Refused) as caught:
        seconds_given(value, refuse)
    assert str(caught.value) == message


def test_a_setting_may_have_a_lower_limit_of_its_own() -> None:
    assert seconds_given(0.0, refuse, least=0.0) == 0.0
    with pytest.raises(Refused, match="at least 5 and"):
        seconds_given(4.9, refuse, least=5.0)


@pytest.mark.parametrize("value", [1, 7, 10**6])
def test_a_count_may_be(value: int) -> None:
    check_count("max_connections", value)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "5", None], ids=repr)
def test_a_count_may_not_be(value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_count("max_connections", value)
    assert str(caught.value) == f"max_connections must be a whole number >= 1, got {value!r}"


@pytest.mark.parametrize("name", ["renew", "restart_guard"])
@pytest.mark.parametrize("value", ["no", 0, 1.0, []], ids=repr)
def test_a_flag_may_not_be(redlock: TaskLock, name: str, value: object) -> None:
    """`"no"` would mean yes."""
    use: Any = (
        partial(redlock.acquire, "k") if name == "renew" else partial(TaskLock, ["redis://a"])
    )
    with pytest.raises(ConfigurationError) as caught:
        use(**{name: value})
    assert str(caught.value) == f"{name} must be True or False, got {value!r}"


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        (5, "clock must have the method now(), which int lacks"),
        (time, "clock must have the method now(), which module lacks"),
        (SimpleNamespace(now=time.monotonic), "clock must have the method wall_us(), which "),
        (
            SimpleNamespace(now=time.monotonic, wall_us=time.time_ns, sleep=1),
            "method sleep(), which",
        ),
    ],
)
def test_a_clock_may_not_be(clock: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        TaskLock(["redis://a"], clock=clock)


@pytest.mark.parametrize(("ttl", "ttl_ms"), [(0.01, 10), (1, 1000), (1.0006, 1001), (60, 60_000)])
def test_a_ttl_may_be_as_long_as_max_ttl(ttl: float, ttl_ms: int) -> None:
    assert lease_times_ms("k", ttl, 0, 60) == (ttl_ms, 0)


@pytest.mark.parametrize("ttl", [0.009, 61])
def test_a_ttl_out_of_range_names_the_range(ttl: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        lease_times_ms("k", ttl, 0, 60)
    assert str(caught.value) == (
        f"cannot lock 'k' with ttl={ttl} s: it must be 0.01 to max_ttl=60 s; "
        "choose another, or set max_ttl for all users of these nodes"
    )


def test_a_ttl_of_nothing_is_refused_as_any_other_duration() -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl must be a number of seconds > 0, got 0$"):
        lease_times_ms("k", 0, 0, 60)


@pytest.mark.parametrize(("delay", "delay_ms"), [(0, 0), (0.5, 500), (30, 30_000)])
def test_a_lock_delay_may_fill_max_ttl_up(delay: float, delay_ms: int) -> None:
    assert lease_times_ms("k", 30, delay, 60) == (30_000, delay_ms)


def test_a_lock_delay_too_long_for_the_restart_guard_names_the_sum() -> None:
    with pytest.raises(ConfigurationError) as caught:
        lease_times_ms("k", 30, 31, 60)
    assert str(caught.value) == (
        "cannot lock 'k' with ttl=30 s and lock_delay=31 s: the nodes keep it for both together, "
        "at most max_ttl=60 s; choose a shorter one, or set max_ttl for all users of these nodes"
    )


@pytest.mark.parametrize("delay", [-1, math.inf, math.nan, None, "5"])
def test_a_lock_delay_is_checked_as_any_other_duration(delay: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^lock_delay must be a number of seconds >= 0"):
        lease_times_ms("k", 30, delay, 60)


def test_a_prefix_has_an_end() -> None:
    check_prefix("é" * 128)
    with pytest.raises(ConfigurationError) as caught:
        check_prefix("é" * 129)
    assert str(caught.value) == (
        f"key_prefix must be at most 256 bytes long, got 258: '{'é' * 129}'; shorten it"
    )
