"""The command `celery-redlock`, and the nodes that it leads to."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner

from celery_redlock.cli.alone import main
from celery_redlock.cli.target import target_of
from celery_redlock.operate.target import Target


@pytest.mark.parametrize("name", sorted(main.commands))
def test_without_a_node_it_is_a_usage_error(name: str) -> None:
    words = [name, "k"] if name in ("release", "show") else [name]
    result = CliRunner().invoke(main, words, env={"REDLOCK_NODES": None})
    assert result.exit_code == 2
    assert "Usage: celery-redlock [OPTIONS] COMMAND" in result.output
    assert "Missing option '--node', or the variable REDLOCK_NODES." in result.output


@pytest.mark.parametrize("words", [["RL103"], []], ids=str)
def test_a_code_is_explained_without_a_node(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["celery-redlock", "doctor", "--explain", *words])
    result = CliRunner().invoke(main, sys.argv[1:], env={"REDLOCK_NODES": None})
    assert result.exit_code == 0
    assert "RL103" in result.output


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf", "1e9"])
@pytest.mark.parametrize("option", ["--node-timeout", "--max-ttl", "--max-clock-skew"])
def test_a_time_is_above_zero(option: str, value: str) -> None:
    result = CliRunner().invoke(main, ["--node", "redis://a", option, value, "status"])
    assert result.exit_code == 2
    assert option in result.output


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--key-prefix", "a b", "redlock_key_prefix = 'a b' can't start a key"),
        ("--key-prefix", "a{b", "redlock_key_prefix = 'a{b' can't start a key"),
        ("--key-prefix", "", "redlock_key_prefix = '' can't start a key"),
        ("--node-timeout", "0", "Invalid value for '--node-timeout': 0.0 is not in the range"),
        ("--max-ttl", "0.001", "Invalid value for '--max-ttl': 0.001 is not in the range"),
    ],
)
def test_an_option_that_no_worker_could_have_is_refused(option: str, value: str, says: str) -> None:
    result = CliRunner().invoke(main, ["--node", "redis://a", option, value, "status"])
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        (["--node", "redis://a"], None, Target(("redis://a",))),
        ([], "redis://a redis://b", Target(("redis://a", "redis://b"))),
        ([], " redis://:x,y@a,redis://b, ", Target(("redis://:x,y@a", "redis://b"))),
        (
            [
                "--node",
                "redis://a",
                "--key-prefix",
                "p",
                "--node-timeout",
                "2",
                "--max-ttl",
                "9",
                "--max-clock-skew",
                "30",
                "--restart-guard",
            ],
            None,
            Target(("redis://a",), "p", 2.0, 9.0, 30.0, restart_guard=True),
        ),
    ],
)
def test_options_and_environment_name_the_target(
    monkeypatch: pytest.MonkeyPatch, words: list[str], env: str | None, expected: Target
) -> None:
    seen: list[Target] = []

    @click.command()
    @click.pass_context
    def peek(ctx: click.Context) -> None:
        seen.append(target_of(ctx))

    monkeypatch.setitem(main.commands, "peek", peek)
    CliRunner().invoke(main, [*words, "peek"], env={"REDLOCK_NODES": env}, catch_exceptions=False)
    assert seen == [expected]


def of_app(**conf: Any) -> Target:
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    command = click.Command("any")
    return target_of(click.Context(command, obj=SimpleNamespace(app=app)))


def test_with_an_app_its_settings_are_the_target() -> None:
    target = of_app(
        redlock_nodes=["redis://a"],
        redlock_key_prefix="p",
        redlock_node_timeout=2.0,
        redlock_max_ttl=9.0,
        redlock_max_clock_skew=0.5,
        redlock_restart_guard=True,
    )
    assert list(target.urls) == ["redis://a"]
    assert (target.key_prefix, target.node_timeout, target.max_ttl) == ("p", 2.0, 9.0)
    assert (target.max_clock_skew, target.restart_guard) == (0.5, True)
    assert target.app is not None


def test_an_app_without_nodes_ends_with_a_message() -> None:
    from celery_redlock.cli import redlock  # noqa: PLC0415  # its name is a fixture elsewhere

    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.update(redlock_enabled=False)
    result = CliRunner().invoke(redlock, ["status"], obj=SimpleNamespace(app=app))
    assert result.exit_code == 1
    assert result.output == "Error: redlock_nodes is not set, and redlock_enabled is False\n"


def test_an_invalid_url_is_an_error_without_its_password() -> None:
    result = CliRunner().invoke(main, ["--node", "redis://:s3/cret@host", "status"])
    assert result.exit_code == 1
    assert "Error: a node's URL can't be read" in result.output
    assert "cret" not in result.output


@pytest.mark.parametrize(("timeout", "patience"), [(0.05, 1.0), (0.25, 1.0), (2.0, 8.0)])
def test_a_person_waits_a_second_or_four_timeouts(timeout: float, patience: float) -> None:
    assert Target(["a"], node_timeout=timeout).patience == patience
