"""What the nodes' raw replies mean, and how the commands are put together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import hiredis
import pytest

from celery_redlock.redlock.quorum import (
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
from celery_redlock.redlock.scripts import (
    ALL,
    GRANT,
    as_ack,
    as_extend,
    as_grant,
    as_release,
    as_reserved,
    done_key,
    evalsha,
    lock_keys,
)

TOKEN = 1_795_123_456_789_012


@pytest.mark.parametrize(
    ("parse", "raw", "meaning"),
    [
        (as_grant, [1, TOKEN, 0], Granted(TOKEN)),
        (as_grant, [1, TOKEN, 1], Granted(TOKEN, took_over=True)),
        (as_grant, [0, b"somebody", 29_000, TOKEN], Busy("somebody", 29_000, TOKEN)),
        (as_grant, [0, b"\xff!", -1, 0], Busy("\ufffd!", -1, 0)),
        (as_grant, [0, b"", 0, TOKEN], Busy("", 0, TOKEN)),
        (as_grant, [2, 10_000], Done(10_000)),
        (as_ack, 1, Acknowledged()),
        (as_ack, 0, Declined()),
        (as_release, 1, Acknowledged()),
        (as_release, 0, Acknowledged(was_ours=False)),
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
    None, b"1", "1", b"OK", 4, -1, 1.5, [], [None], {}, b"",
    [1], [1, b"7"], [1, None], [1, 7], [1, 7, None], [1, 7, 0, 0], [2], [2, b"7"], [3], [0],
    [0, b"x", 1], [0, None, 1, 1], [0, "x", 1, 1], [1, hiredis.ReplyError("ERR")],
    [0, b"x", b"1", 1],
]  # fmt: skip


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend])
@pytest.mark.parametrize("raw", JUNK, ids=repr)
def test_junk_is_a_failure_that_shows_the_reply(
    parse: Callable[[object], object], raw: object
) -> None:
    reply = parse(raw)
    assert isinstance(reply, Failed)
    assert reply.error == f"unexpected reply {raw!r}"


@pytest.mark.parametrize("parse", [as_grant, as_ack, as_release, as_extend])
def test_a_server_s_error_is_a_failure_in_its_words(parse: Callable[[object], object]) -> None:
    error = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
    assert parse(error) == Failed(str(error))


WRONG = hiredis.ReplyError("WRONGTYPE Operation against a key")
FULL = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
REPLICA = hiredis.ReplyError("READONLY You can't write against a read only replica.")


@pytest.mark.parametrize(
    ("raws", "meaning"),
    [
        ([b"OK", b"me", 30_000], Granted(0)),
        ([None, b"me", 29_000], Granted(0)),  # the question came twice
        ([None, b"you", 29_000], Busy("you", 29_000, 0)),
        ([None, b"\xff!", -1], Busy("\ufffd!", -1, 0)),
        ([None, None, -2], Busy("", 0, 0)),  # it ended in between
        ([b"OK", b"you", 9], Failed("unexpected reply [b'OK', b'you', 9]")),
        ([WRONG, None, -2], Failed(str(WRONG))),
        ([None, WRONG, 5], Failed(str(WRONG))),
        ([FULL, None, -2], Failed(str(FULL))),
        ([FULL, b"you", 5], Busy("you", 5, 0)),
        ([REPLICA, b"you", 5], Failed(str(REPLICA))),
        ([REPLICA, b"me", 5], Failed(str(REPLICA))),
    ],
    ids=repr,
)
def test_what_is_said_to_a_reservation_means(raws: list[object], meaning: object) -> None:
    reply = as_reserved(b"me", raws)
    assert reply == meaning
    assert type(reply) is type(meaning)


def test_one_is_never_mistaken_for_another_script_s_reply() -> None:
    for raw in (0, 1, 2):
        assert isinstance(as_grant(raw), Failed)
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


def test_all_keys_of_a_lock_share_a_hash_tag_and_none_is_another_lock_s() -> None:
    assert lock_keys("p", "k") == ("p:{k}", "p:{k}:floor")
    assert done_key("p", "k", "task") == "p:{k}:done:task"
    names = ["k", "k:floor", "k}:floor", "k:done:k", "{k}", ""]
    keys = [key for name in names for key in (*lock_keys("p", name), done_key("p", name, "x"))]
    assert len(set(keys)) == len(keys)
