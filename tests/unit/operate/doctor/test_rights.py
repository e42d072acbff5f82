"""What a node lets its user do is tried, and nothing of it is left."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_redlock.operate.doctor.rights import rights_findings
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.redlock.protocol.scripts import ALL
from celery_redlock.redlock.transport.direct import ErrorReply
from tests.support.fakes.operated import Operated

Found = tuple[str, str, str, str]
A = "127.0.0.1:7000"


def found(nodes: Operated, **options: Any) -> list[Found]:
    target = nodes.target(**options)
    with NodeSet(target.urls, 1.0) as connections:
        return [
            (one.trap.code, one.severity.value, one.where, one.what)
            for one in rights_findings(target, connections)
        ]


def test_a_user_who_may_do_all_that_is_needed_has_no_finding(three: Operated) -> None:
    assert found(three) == []
    assert [three[number].keys() for number in range(3)] == [[], [], []]


def sent(three: Operated, monkeypatch: pytest.MonkeyPatch, url: str) -> list[str]:
    """Return the commands that the first node gets, without random digits."""
    names = {script.sha: script.name for script in ALL}
    execute, commands = three[0].execute, list[str]()

    def noted(command: Any) -> object:
        words = [names.get(word, str(word)) for word in command]
        text = " ".join(words[:2] if words[0] == "SCRIPT" else words)
        text = re.sub(r"\b[0-9a-f]{32}\b", "NONCE", text)
        commands.append(re.sub(r"bank:\{%doctor:[0-9a-f]{16}\}", "LOCK", text))
        return execute(command)

    monkeypatch.setattr(three[0], "execute", noted)
    assert found(three, urls=[url, *three.urls[1:]], key_prefix="bank") == []
    return commands


@pytest.mark.parametrize("query", ["", "?protocol=3&db=0"])
def test_the_lock_s_own_commands_are_tried_on_a_key_of_its_own(
    three: Operated, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    both, owner, high = "2 LOCK LOCK:floor", "NONCE:doctor@doctor", 2**52
    every = [
        *["SCRIPT LOAD"] * len(ALL),
        f"EVALSHA grant {both} {owner} 10000 {high} 0 10000  0",
        f"EVALSHA confirm {both} {owner} {high} 10000 10000",
        f"EVALSHA extend {both} {owner} {high} 10000 10000",
        f"EVALSHA release {both} {owner} {high} 10000 0 0 ",
        f"EVALSHA grant {both} {owner} 10000 1 0 10000  0",
        f"EVALSHA release {both} {owner} 1 10000 0 0 ",
        f"SET LOCK {owner} PX 10000 NX", "GET LOCK", "PTTL LOCK", "PEXPIRE LOCK 10000", "TIME",
        "DEL LOCK", "DEL LOCK:floor", "PUBSUB NUMSUB LOCK", "PUBLISH LOCK ",
    ]  # fmt: skip
    # With protocol 3, a subscription has no reply.
    subscribing = [] if query else ["SUBSCRIBE LOCK", "UNSUBSCRIBE LOCK"]
    assert sent(three, monkeypatch, three.urls[0] + query) == every + subscribing


@pytest.mark.parametrize("command", ["SCRIPT", "EVALSHA", "SET", "PTTL", "TIME", "DEL"])
def test_a_command_that_is_not_permitted_is_an_error(three: Operated, command: str) -> None:
    said = f"NOPERM this user has no permissions to run the '{command.lower()}' command"
    three[0].refused[command] = said
    assert found(three) == [("RL116", "error", A, said)]


@pytest.mark.parametrize(
    "said",
    ["ERR The user executing the script can't run this command", "ERR ACL failure in script"],
)
def test_a_command_that_is_not_permitted_in_a_script_is_an_error(
    three: Operated, said: str
) -> None:
    three[0].refused["EVALSHA"] = said
    assert found(three) == [("RL116", "error", A, said)]


@pytest.mark.parametrize("command", ["PUBSUB", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_wake_ups_that_are_not_permitted_are_a_warning(three: Operated, command: str) -> None:
    said = f"NOPERM this user has no permissions to run the '{command.lower()}' command"
    three[0].refused[command] = said
    assert found(three) == [("RL116", "warning", A, f"wakeups of waiting callers: {said}")]


def test_a_write_that_is_refused_for_another_reason_is_an_error(three: Operated) -> None:
    three[0].is_full = True
    assert found(three) == [
        ("RL118", "error", A, "OOM command not allowed when used memory > 'maxmemory'.")
    ]


def test_missing_rights_come_before_other_refusals(three: Operated) -> None:
    three[0].refused = {"SET": "OOM full", "GET": "NOPERM no get", "PTTL": "NOPERM no pttl"}
    assert [(code, what) for code, _, _, what in found(three)] == [("RL116", "NOPERM no get")]
    three[0].refused = {"SET": "OOM full", "GET": "ERR late"}
    assert [(code, what) for code, _, _, what in found(three)] == [("RL118", "OOM full")]


def test_the_refusals_of_a_replica_are_not_a_second_finding(three: Operated) -> None:
    said = "READONLY You can't write against a read only replica."
    three[0].refused = {"SET": said, "EVALSHA": said}
    assert found(three) == []


def test_a_node_that_is_down_is_not_tried(three: Operated) -> None:
    three[0].is_up = False
    three[0].refused["SET"] = "NOPERM"
    assert found(three) == []


@pytest.mark.parametrize("restart_guard", [None, False])
def test_a_node_that_goes_down_meanwhile_is_a_warning(
    three: Operated, restart_guard: bool | None
) -> None:
    with NodeSet(three.urls, 1.0) as connections:
        three[0].is_up = False
        target = three.target(restart_guard=restart_guard)
        [one, *others] = rights_findings(target, connections)
    assert A not in {each.where for each in others}
    assert (one.trap.code, one.severity.value, one.where) == ("RL102", "warning", A)
    assert one.what == "Connection closed"


REMOTE = ["redis://10.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"]


@pytest.mark.parametrize(
    ("rights", "says"),
    [
        ([b"flags", [b"on"], b"commands", b"-@all +get"], None),
        ([b"flags", [b"on"], b"commands", b"+@all -config"], "+@all -config"),
        ([b"flags", [b"nopass"], b"commands", b"+@all"], "+@all, without a password"),
        # As with protocol 3.
        ({b"flags": {b"nopass"}, b"commands": b"+@all"}, "+@all, without a password"),
        ([b"commands", b"+@all"], "+@all"),
        ([b"flags", [b"nopass"]], None),
    ],
)
def test_all_commands_from_another_machine_are_too_many(
    three: Operated, rights: Any, says: str | None
) -> None:
    three[0].user = b"caf\xe9"
    three[0].rights = three[1].rights = rights
    what = f"user caf\ufffd: {says}"
    expected = [("RL117", "warning", "10.0.0.1:7000", what)] if says else []
    assert found(three, urls=REMOTE) == expected


def test_a_user_who_may_not_ask_for_rights_is_no_finding(three: Operated) -> None:
    three[0].rights = [b"flags", [b"nopass"], b"commands", b"+@all"]
    assert len(found(three, urls=REMOTE)) == 1
    three[0].rights = ErrorReply("NOPERM this user has no permissions to run 'acl|getuser'")
    assert found(three, urls=REMOTE) == []
    three[0].refused["ACL"] = "ERR unknown command 'ACL'"
    assert found(three, urls=REMOTE) == []


@pytest.mark.parametrize(("last", "count"), [("DEL", 0), ("ACL", 0), ("CONFIG", 1)])
def test_a_node_that_goes_down_between_questions_is_unknown(
    three: Operated, monkeypatch: pytest.MonkeyPatch, last: str, count: int
) -> None:
    execute = three[0].execute

    def go_down(command: Any) -> object:
        three[0].is_up &= command[0] != last
        return execute(command)

    three[0].rights = [b"flags", [b"nopass"], b"commands", b"+@all"]
    monkeypatch.setattr(three[0], "execute", go_down)
    assert len(found(three, urls=REMOTE)) == count


@pytest.mark.parametrize(
    ("stored", "synced", "is_found"),
    [
        ("yes", "always", False),
        ("no", "always", True),
        ("yes", "everysec", True),
        ("yes", "no", True),
    ],
)
def test_without_a_guard_each_write_must_be_stored(
    three: Operated, stored: str, synced: str, is_found: bool
) -> None:
    three[0].conf |= {"appendonly": stored, "appendfsync": synced}
    says = f"appendonly {stored}, appendfsync {synced}, no-appendfsync-on-rewrite no"
    expected = [("RL112", "error", A, says)] if is_found else []
    assert found(three, restart_guard=False) == expected
    assert found(three, restart_guard=None) == []


def test_writes_that_wait_for_a_rewrite_may_be_forgotten(three: Operated) -> None:
    three[0].conf["no-appendfsync-on-rewrite"] = "yes"
    says = "appendonly yes, appendfsync always, no-appendfsync-on-rewrite yes"
    assert found(three, restart_guard=False) == [("RL112", "error", A, says)]
    del three[0].conf["no-appendfsync-on-rewrite"]
    says = "appendonly yes, appendfsync always"
    assert found(three, restart_guard=False) == [("RL112", "error", A, says)]


def test_the_configuration_is_a_map_with_protocol_3(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, synced in enumerate((b"no", b"always", b"always")):
        conf = {
            b"appendonly": b"yes", b"appendfsync": synced, b"no-appendfsync-on-rewrite": b"no",
        }  # fmt: skip
        monkeypatch.setattr(three[number], "_do_config", lambda *_, conf=conf: conf)
    says = "appendonly yes, appendfsync no, no-appendfsync-on-rewrite no"
    assert found(three, restart_guard=False) == [("RL112", "error", A, says)]


def test_the_persistence_of_a_single_node_is_another_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Operated(1, monkeypatch)
    one[0].conf = {"appendonly": "no", "appendfsync": "no"}
    assert found(one) == []


def test_persistence_is_unknown_where_config_is_forbidden(three: Operated) -> None:
    three[0].refused["CONFIG"] = "NOPERM this user has no permissions to run 'config|get'"
    [(code, severity, where, what)] = found(three, restart_guard=False)
    assert (code, severity, where) == ("RL112", "unknown", A)
    assert "CONFIG, which tells appendfsync, is forbidden" in what
