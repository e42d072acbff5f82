"""Which app it is: its name and its broker, without what is secret."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redlock.config.identity import identity_of


def identity(broker: Any, name: str | None = "shop", **conf: Any) -> str:
    app = Celery(name, set_as_current=False)
    app.conf.update(broker_url=broker, **conf)
    return identity_of(app)


@pytest.fixture(autouse=True)
def nothing_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_stable_and_readable() -> None:
    assert identity("redis://a:1/0") == "shop@593c1a1bbecf"
    prefix = {"queue_name_prefix": "x-"}
    both = identity("amqp://a//;amqp://b//", broker_transport_options=prefix)
    assert both == "shop@e539d61fbc34"
    assert identity("redis://a:1/0", "my shop/a:{1}").startswith("my%20shop%2Fa%3A%7B1%7D@")
    assert identity("redis://a:1/0", None).startswith("@")


@pytest.mark.parametrize(
    "other",
    ["redis://b:1/0", "redis://a:2/0", "redis://a:1/1", "rediss://a:1/0", "amqp://a:1/0", None],
)
def test_apps_of_one_name_on_different_brokers_differ(other: str | None) -> None:
    assert identity("redis://a:1/0") != identity(other)
    assert identity("redis://a:1/0") != identity("redis://a:1/0", broker_write_url="redis://c")


@pytest.mark.parametrize(
    "same",
    [
        "redis://user:sesame@a:1/0",
        "redis://:other@a:1/0",
        "redis://:ses@me@a:1/0",
        "redis://:ses/me@a:1/0",
        "redis://A:1/0",
        "redis://a:1/0?password=sesame&ssl_cert_reqs=none",
        ["redis://:sesame@a:1/0"],
    ],
    ids=str,
)
def test_users_passwords_and_options_make_no_difference(same: Any) -> None:
    if "ses/me" in same:
        # No client takes it for that, but its rest must not be in there either.
        assert identity(same) == identity("redis://:ses/other@a:1/0")
    else:
        assert identity(same) == identity("redis://a:1/0")


@pytest.mark.parametrize("option", ["global_keyprefix", "queue_name_prefix"])
def test_queues_with_another_prefix_are_another_broker(option: str) -> None:
    def prefixed(prefix: str, **more: Any) -> str:
        return identity("redis://a:1/0", broker_transport_options={option: prefix, **more})

    assert len({prefixed("test-"), prefixed("live-"), identity("redis://a:1/0")}) == 3
    assert prefixed("test-") == prefixed("test-", visibility_timeout=60)
    assert prefixed("") == identity("redis://a:1/0")
    assert identity("redis://a:1/0", broker_transport_options=None) == prefixed("")


def test_the_order_of_alternatives_makes_no_difference() -> None:
    both = identity("amqp://a// ; amqp://b//")
    assert both == identity(["amqp://b//", "amqp://u:p@a//"])
    assert both == identity(("amqp://b//", "amqp://a//"))
    assert both != identity("amqp://a//")


def test_what_can_not_be_read_is_no_error() -> None:
    assert identity("redis://[a") == identity("redis://[b")
    assert identity("redis://h\udcf6st") != identity("redis://host")
