"""No argument of a task is in a log line, an error, an event or a signal, however its run ends."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from kombu.exceptions import EncodeError

from celery_redlock import SingletonTask
from celery_redlock.config.options import Lifetime, OnConflict, OnUnavailable
from celery_redlock.redlock.errors import ConfigurationError, RedlockError
from celery_redlock.signals import lock_acquired, lock_conflict, lock_released, lock_unavailable
from tests.support.fakes.forged import HOLDER, deliver
from tests.support.fakes.one_node import OneNode

MARK = "s3same"
"""Is in each argument."""
TEXTS = st.text(max_size=10).map(lambda text: MARK + text)
VALUES = st.recursive(
    TEXTS | st.binary(max_size=5).map(lambda data: MARK.encode() + data),
    lambda some: (
        st.lists(some, min_size=1, max_size=3)
        | st.dictionaries(TEXTS, some, min_size=1, max_size=2)
        | st.tuples(some)
        | st.builds(lambda _: object.__new__(Opaque), some)
    ),
    max_leaves=4,
)


class Opaque:
    """An argument that JSON can't write, and that shows itself."""

    def __repr__(self) -> str:
        return MARK

    def __str__(self) -> str:
        return MARK

    def __format__(self, spec: str) -> str:
        raise ValueError(f"{MARK} is not to be shown as {spec}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{MARK} has no {name}")


class HeldBy(dict[str, tuple[str, float]]):
    """Locks of which each has the same owner."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, (self._owner, 1e9))

    def __missing__(self, key: str) -> tuple[str, float]:
        return self._owner, 1e9

    def __delitem__(self, key: str) -> None:
        self.pop(key, None)


class Every(set[str]):
    """All keys."""

    def __contains__(self, key: object) -> bool:
        return True


KEYS: dict[str, Any] = {
    "all": None,
    "a path": "{a.name[x]:>5}",
    "a form": "{a:%Y}",
    "by name": ["a"],
    "a function's": lambda a, b: [a],
}
HELD: dict[str, Any] = {
    "held": lambda: HeldBy(HOLDER),
    "held by its other copy": lambda: HeldBy(HOLDER.replace("holder", "task-1")),
}


@given(
    value=VALUES,
    other=VALUES,
    state=st.sampled_from(["free", "down", "split", *HELD]),
    key=st.sampled_from(list(KEYS)),
    on_conflict=st.sampled_from(OnConflict),
    on_unavailable=st.sampled_from(OnUnavailable),
    lifetime=st.sampled_from(Lifetime),
    redelivered=st.booleans(),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None
)
@pytest.mark.filterwarnings("ignore:Exception raised outside body")  # by Celery
def test_no_argument_is_shown_however_a_run_ends(  # noqa: PLR0917  # Hypothesis names them
    app: Celery, node: OneNode, caplog: pytest.LogCaptureFixture, value: Any, other: Any,
    state: str, key: str, on_conflict: OnConflict, on_unavailable: OnUnavailable,
    lifetime: Lifetime, redelivered: bool,
) -> None:  # fmt: skip
    caplog.clear()
    caplog.set_level(logging.DEBUG, logger="celery_redlock")
    shown: list[str] = []

    def note(**told: Any) -> None:
        # The task that sends it is the user's own.
        shown.extend(repr(one) for name, one in told.items() if name not in ("sender", "signal"))

    @app.task(
        base=SingletonTask, name="t", lock_key=KEYS[key], lock_on_conflict=on_conflict.value,
        lock_on_unavailable=on_unavailable.value, acks_late=True,
        lock_wait=0.01 if on_conflict is OnConflict.WAIT else None, lock_lifetime=lifetime.value,
        send_event=lambda _self, _kind, **fields: shown.append(repr(fields)),
    )  # fmt: skip
    def body(a: Any, b: Any = None) -> None:
        pass

    try:
        body._lock_config()
    except ConfigurationError:
        app._tasks.pop("t", None)  # type: ignore[attr-defined]
        reject()  # the lifetime does not go with the policy
    calls: list[Any] = [
        lambda: body.apply_async((value,), {"b": other}),
        lambda: retval_of(
            deliver(
                body,
                args=[value],
                kwargs={"b": other},
                delivery_info={"redelivered": redelivered},
            )
        ),
    ]
    node.held = HELD[state]() if state in HELD else {}
    node.is_up, node.split = state != "down", Every() if state == "split" else set()
    signals = (lock_acquired, lock_conflict, lock_unavailable, lock_released)
    for signal in signals:
        signal.connect(note)
    try:
        for call in calls:
            try:
                shown.append(repr(call()))
            except RedlockError as error:
                shown += traceback.format_exception(error)
            except (EncodeError, TypeError):
                pass  # Celery's own, of a value that it can't send.
    finally:
        for signal in signals:
            signal.disconnect(note)
        app._tasks.pop("t", None)  # type: ignore[attr-defined]
    shown += map(logging.Formatter().format, ours(caplog.records))
    assert MARK not in "".join(shown)


def retval_of(ended: Any) -> Any:
    """Return what a run has stored: a result, or an error with its traceback."""
    failed = getattr(ended.retval, "traceback", None)
    return failed or ended


def ours(records: list[logging.LogRecord]) -> list[logging.LogRecord]:
    """Return what this package has logged: Celery logs arguments if it is told to."""
    return [record for record in records if record.name.startswith("celery_redlock")]
