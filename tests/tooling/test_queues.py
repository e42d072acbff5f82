"""The tests' look at a broker's queues sees messages that are nowhere for a moment."""

from __future__ import annotations

import threading

from celery_redlock.testing import Server
from tests.support.eventually import eventually
from tests.support.judges.queues import is_taking


def test_a_message_that_a_worker_has_just_taken_is_seen() -> None:
    with (
        Server() as broker,
        broker.client(socket_timeout=60.0) as worker,
        broker.client() as test,
    ):

        def is_seen() -> bool:
            return is_taking(test.client_list())

        def is_waited_for() -> bool:
            return any("b" in one["flags"] for one in test.client_list())

        taking = threading.Thread(target=worker.brpop, args=(["queue"], 50))
        taking.start()
        eventually(is_waited_for)
        assert not is_seen()
        test.lpush("queue", "message")
        taking.join()
        assert is_seen()
