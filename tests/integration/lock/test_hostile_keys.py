"""Whatever a key is, it is refused before a node is asked, or is a lock of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_redlock.redlock import ConfigurationError, LockHeld, Redlock
from celery_redlock.redlock.validation import KEY_BYTES
from celery_redlock.testing import Servers
from tests.support.evidence import HostileInputs, hostile_inputs
from tests.support.judges.nodes import assert_freed

# What the names on the nodes are made of, and what ends a string elsewhere.
_TRICKY = st.text(st.sampled_from("a{}:\0\r\n*?[]\\ ~%é\ud800🔒"), max_size=12)
_SUFFIXES = st.sampled_from(
    ["", "}", "{", ":floor", "}:floor", ":done:x", "}:done:x", "%next", "\0", " ", "\n"]
)
KEYS = st.one_of(
    _TRICKY,
    st.text(max_size=20),
    st.integers(1, 2 * KEY_BYTES).map(lambda size: "k" * size),
    st.builds(lambda key, suffix: key + suffix, _TRICKY, _SUFFIXES),
    st.none(),
    st.binary(max_size=3),
    st.floats(),
)


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("keys", request.session) as counts:
        yield counts


@pytest.mark.long
@given(key=KEYS, suffix=_SUFFIXES)
@example(key="}", suffix=":floor")
@example(key="k" * (KEY_BYTES - 1), suffix="k")
@example(key="k" * 1_000_000, suffix="")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=150,
    deadline=None,
)
def test_any_key_is_a_lock_of_its_own_or_refused(
    five: Servers, redlock: Redlock, rival: Redlock, tried: HostileInputs, key: object, suffix: str
) -> None:
    tried.tried += 1
    try:
        lease = redlock.acquire(key)  # type: ignore[arg-type]
    except ConfigurationError:
        tried.refuse()
        return
    assert isinstance(key, str)
    with pytest.raises(LockHeld):
        rival.acquire(key)
    if suffix and len((key + suffix).encode()) <= KEY_BYTES:
        # Another key is another lock, however much its names on the nodes look alike.
        rival.release(rival.acquire(key + suffix))
    lease.ensure()
    redlock.release(lease)
    assert_freed(five, key)
