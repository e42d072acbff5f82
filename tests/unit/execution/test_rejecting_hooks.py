"""What becomes of a message that a hook of its task rejects, after the body has run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from celery_redlock import SingletonTask
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

MARK = ("t", "task-1/0")


# Celery before 5.7 stores the rejection as a failure, with a warning, and requeues all the same.
@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
@pytest.mark.parametrize(("error", "runs_again"), [
    (None, False), (Reject(requeue=False), False), (Reject(requeue=True), True),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("hook", ["on_success", "after_return"])
def test_a_message_that_a_hook_requeues_is_not_discarded_as_done(
    app: Celery, node: OneNode, hook: str, error: Exception | None, runs_again: bool
) -> None:
    def reject(*_: Any) -> None:
        if error:
            raise error

    base = type("Base", (SingletonTask,), {hook: reject, "abstract": True})

    @app.task(base=base, name="t", lock_key=[], acks_late=True)
    def body() -> None: ...

    with suppress(Reject):
        deliver(body)
    # The mark that the release wrote stands for seconds; then the message that comes again runs.
    assert node.done == {MARK}
    assert node.marked_for_long == (set() if runs_again else {MARK})
