"""What the nodes' raw replies mean, and how the commands are put together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import hiredis
import pytest

from celery_redlock.redlock.protocol.replies import (
    Acknowledged,
    Busy,
    Declined,
    Done,
    Extended,
    Failed,
    Granted,
    Healed,
    Occupied,
    Superseded,
)
from celery_redlock.redlock.protocol.scripts import (
    ALL,
    GRANT,
    Refusal,
    as_ack,
    as_extend,
    as_grant,
    as_held,
    as_probed,
    as_release,
    as_reserved,
    as_time,
    done_key,
    evalsha,
    lock_keys,
    looking_closely,
)

TOKEN = 1_795_123_456_789_012


def said(error: str) -> Failed:
    """Return the failure of a node that has answered."""
    return Failed(error, is_reply=True)


@pytest.mark.parametrize(
    ("parse", "raw", "meaning"),
    [
        (as_grant, str(TOKEN).encode(), Granted(TOKEN)),
        (as_grant, [1, TOKEN, 0], Granted(TOKEN)),
        (as_grant, [1, TOKEN, 1], Granted(TOKEN, took_over=True)),
        (as_grant, [0, b"a", 29_000, TOKEN, TOKEN + 7], Busy("a", 29_000, TOKEN, age_us=7)),
        (as_grant, [0, b"a", 29_000, TOKEN, TOKEN - 7], Busy("a", 29_000, TOKEN, age_us=-7)),
        (as_grant, [0, b"\xff!", -1, 0, TOKEN], Busy("\ufffd!", -1, 0)),
        (as_grant, [0, b"", 0, TOKEN, TOKEN], Busy("", 0, TOKEN, age_us=0)),
        (as_grant, [0, b"a", 1, 2**53, 2**53], Busy("a", 1, 2**53, age_us=0)),
        (as_grant, [2, 10_000], Done(10_000)),
        (as_ack, 1, Acknowledged()),
        (as_ack, 0, Declined()),
        (as_release, 1, Acknowledged()),
        (as_release, 0, Acknowledged(was_ours=False)),
        (as_release, [b"released", 1], Acknowledged(listeners=1)),
        (as_release, [b"released", 0], said("unexpected reply [b'released', 0]")),
        (as_extend, 1, Extended()),
        (as_extend, 2, Healed()),
        (as_extend, 0, Superseded()),
        (as_extend, 3, Occupied()),
    ],
)
def test_a_reply_means(parse: Callable[[object], object], raw: object, meaning: object) -> None:
    assert parse(raw) == meaning
    assert type(parse(raw)) is type(meaning)


JUNK: list[object] = [
    None, b"1.0", b"-1", b"9" * 17, "1", b"OK", 4, -1, 1.5, [], [None], {}, b"",
    [1], [1, b"7"], [1, None], [1, 7], [1, 7, None], [1, 7, 0, 0], [2], [2, b"7"], [3], [0],
    [0, b"x", 1], [0, None, 1, 1], [0, "x", 1, 1], [1, hiredis.ReplyError("ERR")],
    [0, b"x", b"1", 1], [0, b"x", 1, 1], [0, b"x", 1, 1, b"1"], [0, b"x", 1, -1, 1],
]  # fmt: skip


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend])
@pytest.mark.parametrize("raw", JUNK, ids=repr)
def test_junk_is_a_failure_that_shows_the_reply(
    parse: Callable[[object], object], raw: object
) -> None:
    reply = parse(raw)
    assert isinstance(reply, Failed)
    assert reply.error == f"unexpected reply {raw!r}"


BEYOND = 2**53 + 1


@pytest.mark.parametrize("token", [0, -1, BEYOND, 2**63 - 1])
def test_a_token_out_of_range_is_a_failed_reply(token: int) -> None:
    for raw in ([1, token, 0], str(token).encode()):
        assert as_grant(raw) == said(f"unexpected reply {raw!r}")


@pytest.mark.parametrize("floor", [-1, BEYOND, 2**63 - 1])
def test_a_floor_out_of_range_is_a_failed_reply(floor: int) -> None:
    assert isinstance(as_grant([0, b"somebody", 29_000, floor]), Failed)


@pytest.mark.parametrize("token", [1, 2**53])
def test_the_ends_of_a_token_s_range_are_in_it(token: int) -> None:
    assert as_grant([1, token, 0]) == as_grant(str(token).encode()) == Granted(token)


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend, as_time])
def test_a_huge_or_nested_reply_is_a_short_failure(parse: Callable[[object], object]) -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for raw in (nested, b"x" * 10**7, [b"x" * 10**7] * 100, hiredis.ReplyError("x" * 10**7)):
        reply = parse(raw)
        assert isinstance(reply, Failed)
        assert len(reply.error) < 1000


def test_a_node_s_time_is_told_in_seconds() -> None:
    assert as_time([b"1795123456", b"789012"]) == 1_795_123_456.789012


@pytest.mark.parametrize("raw", [[b"", b"1"], [b"now", b"1"], [b"1", b"9" * 5000], [1, 2], b"1"])
def test_what_is_no_time_is_a_failed_reply(raw: object) -> None:
    assert as_time(raw) == said(as_ack(raw).error)  # type: ignore[union-attr]


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend])
def test_a_server_s_error_is_a_failure_in_its_words(parse: Callable[[object], object]) -> None:
    error = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
    assert parse(error) == said(str(error))


WRONG = hiredis.ReplyError("WRONGTYPE Operation against a key")
FULL = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
REPLICA = hiredis.ReplyError("READONLY You can't write against a read only replica.")


@pytest.mark.parametrize(
    ("raws", "meaning"),
    [
        ([b"OK", b"me", 30_000], Granted(0)),
        ([None, b"me", 29_000], Granted(0)),  # the question came twice
        ([None, b"you", 29_000], Busy("you", 29_000, 0)),
        pytest.param([None, b"\xff!", -1], Busy("\ufffd!", -1, 0), id="not UTF-8"),
        ([None, None, -2], Busy("", 0, 0)),  # it ended in between
        ([b"OK", b"you", 9], said("unexpected reply [b'OK', b'you', 9]")),
        ([WRONG, None, -2], said(str(WRONG))),
        ([None, WRONG, 5], said(str(WRONG))),
        ([FULL, None, -2], said(str(FULL))),
        ([FULL, b"you", 5], Busy("you", 5, 0)),
        ([REPLICA, b"you", 5], said(str(REPLICA))),
        ([REPLICA, b"me", 5], said(str(REPLICA))),
    ],
    ids=repr,
)
def test_what_is_said_to_a_reservation_means(raws: list[object], meaning: object) -> None:
    reply = as_reserved(b"me", raws)
    assert reply == meaning
    assert type(reply) is type(meaning)


CLOCK = [b"1795123456", b"789012"]


@pytest.mark.parametrize(
    ("raws", "meaning"),
    [
        ([b"a", 29_000, str(TOKEN - 7).encode(), CLOCK], Busy("a", 29_000, TOKEN - 7, age_us=7)),
        ([b"a", 29_000, None, CLOCK], Busy("a", 29_000, 0)),
        ([b"a", 29_000, b"junk", CLOCK], Busy("a", 29_000, 0)),
        ([b"a", 29_000, b"%d" % (2**53 + 1), CLOCK], Busy("a", 29_000, 0)),
        ([b"a", 29_000, b"%d" % 2**53, None], Busy("a", 29_000, 2**53)),
        ([b"a", 29_000, None, None], Busy("a", 29_000, 0)),
        pytest.param([b"\xff!", -1, None, CLOCK], Busy("\ufffd!", -1, 0), id="not UTF-8"),
        ([None, -2, None, CLOCK], Busy("", 0, 0)),
        ([None, -2, str(TOKEN).encode(), CLOCK], Busy("", 0, TOKEN)),
        ([b"a", 29_000, None, CLOCK, 1], Done(1)),
        ([b"a", 29_000, None, CLOCK, 0], Busy("a", 29_000, 0)),
        ([b"a", 29_000, None, CLOCK, -2], Busy("a", 29_000, 0)),
        ([WRONG, 29_000, None, CLOCK], said(str(WRONG))),
        ([b"a", b"junk", None, CLOCK], said(f"unexpected reply {[b'a', b'junk', None, CLOCK]}")),
    ],
    ids=repr,
)
def test_the_replies_to_a_close_look_mean(raws: list[object], meaning: object) -> None:
    reply = as_held(raws)
    assert reply == meaning
    assert type(reply) is type(meaning)


def test_a_close_look_reads_owner_floor_clock_and_mark() -> None:
    look = [("GET", "lock"), ("PTTL", "lock"), ("GET", "floor"), ("TIME",)]
    assert looking_closely("lock", "floor") == look
    assert looking_closely("lock", "floor", "mark") == [*look, ("PTTL", "mark")]


@pytest.mark.parametrize(
    ("raws", "meaning"),
    [
        ([b"1", 1], Refusal("")),
        ([FULL, 0], Refusal(str(FULL))),
        ([b"1", WRONG], Refusal(str(WRONG))),
        ([b"x", 1], said("unexpected reply b'x'")),
        ([b"1", b"x"], said("unexpected reply b'x'")),
        ([b"1", 1, 900, 1], Refusal("")),
        ([b"1", WRONG, 900, 1], Refusal(str(WRONG))),
        ([b"1", 1, WRONG, 1], Refusal(str(WRONG))),
        ([b"1", 1, b"x", 1], said("unexpected reply b'x'")),
    ],
    ids=repr,
)
def test_the_replies_to_a_probe_mean(raws: list[object], meaning: object) -> None:
    reply = as_probed(raws)
    assert reply == meaning
    assert type(reply) is type(meaning)


def test_one_is_never_mistaken_for_another_script_s_reply() -> None:
    for raw in (0, 1, 2):
        assert isinstance(as_grant(raw), Failed)
    for parse in (as_ack, as_release, as_extend):
        assert isinstance(parse(b"1"), Failed)
    assert isinstance(as_ack(2), Failed)
    assert isinstance(as_release(2), Failed)


def test_a_script_s_digest_is_the_one_that_servers_use() -> None:
    for script in ALL:
        assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()  # noqa: S324
        assert script.text.startswith("-- PROTOCOL")
    assert len({script.sha for script in ALL}) == 4


def test_a_command_names_script_keys_and_arguments() -> None:
    command = evalsha(GRANT, ("lock", "floor"), "owner", 1000)
    assert command == ("EVALSHA", GRANT.sha, 2, "lock", "floor", "owner", 1000)


def test_the_keys_of_a_lock_share_a_hash_tag_of_their_own() -> None:
    assert lock_keys("p", "k") == ("p:{k}", "p:{k}:floor")
    assert done_key("p", "k", "task") == "p:{k}:done:task"
    names = ["k", "k:floor", "k}:floor", "k:done:k", "{k}", ""]
    keys = [key for name in names for key in (*lock_keys("p", name), done_key("p", name, "x"))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend])
@pytest.mark.parametrize("mark", ["", "~", ".0123456789abcdef~"])
def test_what_a_node_says_is_told_without_nonces(
    parse: Callable[[object], object], mark: str
) -> None:
    owner = f"{'ab' * 16}{mark}:task-1@host"
    complaint = f"ERR unknown command 'SET', with args beginning with: 'redlock:{{k}}' '{owner}'"
    for raw in ([7, owner.encode(), 0, 0], Exception(complaint)):
        told = parse(raw)
        assert isinstance(told, Failed)
        assert "task-1@host" in told.error
        assert "abab" not in told.error
