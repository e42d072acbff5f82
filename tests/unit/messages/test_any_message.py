"""Whatever is in a message: it runs under its lock or not at all, and leaves nothing locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_redlock import SingletonTask
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER, TICK_HEADER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from tests.support.evidence import HostileInputs, hostile_inputs
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

HOLDER = f"{'0' * 32}:holder@host"
WAITING = f"{'1' * 32}~:waiting@host"
NAMES = [*vars(Context), HEADER, PUBLICATION_HEADER, COPY_HEADER, TICK_HEADER, "x-death"]
TEXTS = st.sampled_from(["", "t", "t%next", "x", HOLDER, WAITING, "\ud800", "1", "nan"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=3),
    max_leaves=5,
)
MESSAGES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
RESERVATION = st.tuples(TEXTS, TEXTS).map(lambda pair: {HEADER: list(pair)})


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("headers of messages", request.session) as counts:
        yield counts


@given(
    headers=MESSAGES,
    custom=st.none() | VALUES | RESERVATION,
    embed=MESSAGES,
    holder=st.sampled_from([None, HOLDER, WAITING]),
)
@example(headers={"retries": "\ud800"}, custom={"x-death": []}, embed={}, holder=None)
@example(headers={}, custom={HEADER: ["t", HOLDER]}, embed={}, holder=HOLDER)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@pytest.mark.filterwarnings("ignore:Exception raised outside body")  # by Celery
@pytest.mark.parametrize("lifetime", ["while_executing", "until_executed"])
def test_any_message_runs_under_its_lock_or_not_at_all(
    app: Celery,
    node: OneNode,
    tried: HostileInputs,
    lifetime: str,
    headers: Any,
    custom: Any,
    embed: Any,
    holder: str | None,
) -> None:
    tried.tried += 1
    seen: list[str | None] = []

    @app.task(base=SingletonTask, name="t", lock_key=[], lock_lifetime=lifetime, acks_late=True)
    def body() -> None:
        seen.append(node.owner_of("t"))

    node.held = {"t": (holder, 1e9)} if holder else {}
    node.done.clear()
    if custom is not None:
        headers = {**headers, "headers": custom}
    with suppress(Exception):  # what Celery makes of it is its own affair
        deliver(body, embed=embed, **headers)
    app._tasks.pop("t", None)  # type: ignore[attr-defined]
    if holder == HOLDER:
        assert seen == []
        assert node.held == {"t": (HOLDER, 1e9)}
    else:
        assert all(owner not in (None, holder) for owner in seen)
        assert set(node.held) <= {"t"}
        assert node.owner_of("t") in (None, holder)
        assert not seen or node.held == {}
