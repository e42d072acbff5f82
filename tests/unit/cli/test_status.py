"""What `celery-redlock status` prints, and exits with."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run


def test_each_node_is_a_row_and_the_last_line_is_the_verdict(three: Operated, run: Run) -> None:
    three[1].info |= {"maxmemory": "104857600", "valkey_version": "9.1.0"}
    ran = run("status", options=["--restart-guard"])
    assert ran.output == (
        "NODE            STATE  SERVER        ROLE    UP    ROUND TRIP  CLOCK    MEMORY           "
        "   POLICY      CONNECTIONS\n"
        "127.0.0.1:7000  votes  Redis 7.0.15  master  24 h  0.0 ms      +0.0 ms  1.0 MB           "
        "   noeviction  2 of 10000\n"
        "127.0.0.1:7001  votes  Valkey 9.1.0  master  24 h  0.0 ms      +0.0 ms  1.0 MB of 104.9 "
        "MB  noeviction  2 of 10000\n"
        "127.0.0.1:7002  votes  Redis 7.0.15  master  24 h  0.0 ms      +0.0 ms  1.0 MB           "
        "   noeviction  2 of 10000\n"
        "\n"
        "Locks work: 3 of 3 nodes vote, and 1 may fail.\n"
    )
    assert ran.exit_code == 0


def test_a_minority_that_is_down_leaves_a_quorum(three: Operated, run: Run) -> None:
    three[0].is_up = False
    ran = run("status")
    assert "127.0.0.1:7000  down " in ran.output
    assert "\n127.0.0.1:7000: Connection refused\n" in ran.output
    verdict = "Locks work, but one more failed node stops all locks: 2 of 3 nodes vote."
    assert ran.output.endswith(f"{verdict}\n")
    assert ran.exit_code == 0


def test_locking_that_is_switched_off_is_told(run: Run, bank: Celery) -> None:
    assert run("status", "--json", app=bank).json["enabled"] is True
    assert run("status", "--json").json["enabled"] is True
    bank.conf.update(redlock_enabled=False)
    assert run("status", "--json", app=bank).json["enabled"] is False
    ran = run("status", app=bank)
    assert ran.output.endswith("redlock_enabled is False: the app's tasks run without a lock.\n")
    assert ran.exit_code == 0


def test_without_a_quorum_it_fails(three: Operated, run: Run) -> None:
    three[0].is_up = three[2].is_up = False
    ran = run("status")
    assert ran.output.endswith("No lock can be acquired: 1 of 3 nodes votes, 2 are needed.\n")
    assert ran.exit_code == 1
    shown = run("status", "--json")
    assert (shown.json["votes"], shown.json["needed"], shown.exit_code) == (1, 2, 1)


@pytest.mark.parametrize(
    ("options", "state", "code"),
    [
        ((), "guarded", 1),
        (("--no-restart-guard",), "votes", 0),
        (("--max-ttl", "5"), "votes", 0),
        (("--max-ttl", "5", "--max-clock-skew", "30"), "guarded", 1),
    ],
)
def test_nodes_are_guarded_as_the_group_s_options_say(
    three: Operated, run: Run, options: tuple[str, ...], state: str, code: int
) -> None:
    for number in range(3):
        three[number].info["uptime_in_seconds"] = "20"
    ran = run("status", "--json", options=options)
    assert {node["state"] for node in ran.json["nodes"]} == {state}
    assert ran.exit_code == code


def test_a_replica_does_not_vote_and_the_others_do(three: Operated, run: Run) -> None:
    three[1].info["role"] = "slave"
    ran = run("status", "--json")
    assert [node["state"] for node in ran.json["nodes"]] == ["votes", "unfit", "votes"]
    assert "is a slave" in ran.json["nodes"][1]["why"]
    assert (ran.json["votes"], ran.exit_code) == (2, 0)


def test_a_user_who_may_not_ask_shows_the_server_s_words(three: Operated, run: Run) -> None:
    three[0].refused["INFO"] = "NOPERM no info"
    three[1].refused["CONFIG"] = "NOPERM no config"
    three[2].refused["TIME"] = "NOPERM no time"
    first, second, third = run("status", "--json").json["nodes"]
    assert (first["state"], first["why"]) == ("down", "NOPERM no info")
    assert (second["state"], second["why"]) == ("votes", None)
    assert (third["state"], third["latency"], third["clock_offset"]) == ("votes", None, None)


def test_a_clock_that_is_ahead_is_measured(three: Operated, run: Run) -> None:
    three[0].clock_ahead = 60.0
    three[1].clock_ahead = -0.25
    offsets = [node["clock_offset"] for node in run("status", "--json").json["nodes"]]
    assert offsets == [60.0, -0.25, 0.0]
    text = run("status").output
    assert "+60.00 s" in text
    assert "-250.0 ms" in text


def test_what_a_node_does_not_tell_is_a_dash(three: Operated, run: Run) -> None:
    identity = ("role", "run_id", "uptime_in_seconds")
    three[0].info = {name: three[0].info[name] for name in identity}
    row = run("status", options=["--no-restart-guard"]).output.splitlines()[1]
    assert row.split() == [
        "127.0.0.1:7000", "votes", "-", "master", "24", "h", "0.0", "ms", "+0.0", "ms",
        "-", "-", "-",
    ]  # fmt: skip


def test_a_node_that_is_named_twice_is_an_error(three: Operated, run: Run) -> None:
    ran = run("status", options=["--node", three.urls[0], "--node", three.urls[1]])
    assert ran.output.startswith("Error: node 127.0.0.1:7000 is named twice")
    assert ran.exit_code == 1


def test_nodes_that_refuse_to_write_do_not_vote(three: Operated, run: Run) -> None:
    three[0].is_full = three[1].is_full = True
    ran = run("status")
    assert "127.0.0.1:7000  refuses " in ran.output
    assert "\n127.0.0.1:7000: refuses to write: OOM" in ran.output
    assert ran.output.endswith("No lock can be acquired: 1 of 3 nodes votes, 2 are needed.\n")
    assert ran.exit_code == 1


def test_nodes_beyond_the_node_timeout_do_not_vote(three: Operated, run: Run) -> None:
    three[0].delay = three[1].delay = 0.031
    ran = run("status", "--json")
    assert [node["state"] for node in ran.json["nodes"]] == ["slow", "slow", "votes"]
    assert ran.json["nodes"][0]["why"] == "it answers after 62 ms, and the node timeout is 50 ms"
    assert (ran.json["votes"], ran.exit_code) == (1, 1)
    assert run("status", options=["--node-timeout", "0.1"]).exit_code == 0


def test_each_state_has_a_colour_and_each_reason_a_line(three: Operated, run: Run) -> None:
    three[0].is_up = False
    three[1].info["uptime_in_seconds"] = "20"
    output = run("status", color=True).output
    colours = re.findall(r"  \x1b\[(\d+)m(\w+)\x1b\[0m", output)
    assert colours == [("31", "down"), ("33", "guarded"), ("32", "votes")]
    reasons = output.split("\n\n")[1]
    assert [line.partition(": ")[0] for line in reasons.splitlines()] == [
        "127.0.0.1:7000", "127.0.0.1:7001"
    ]  # fmt: skip
