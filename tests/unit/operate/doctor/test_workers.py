"""Workers that lock elsewhere are found, and those of other projects are not asked."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.operate.doctor.workers import worker_findings
from celery_redlock.operate.target import Target
from celery_redlock.redlock.inspection import Judgement, State

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "redlock a:1/0=aaaaaaaa b:1/0=bbbbbbbb c:1/0=cccccccc"
BANK = HERE.replace("redlock", "bank")
RESTARTED = HERE.replace("cccc", "dddd")


class Installation:
    """An app whose workers answer over a broker.

    Attributes:
        says: Answers of each worker to `redlock_placement`; the last one once it has looked.
        knows: Tasks of each worker.
        asked: Workers that were asked, each time.
    """

    def __init__(self, **says: Any) -> None:
        self.says = says
        self.knows = {worker: ["bank.t [rate_limit=1/s]", "bank.plain"] for worker in says}
        self.asked: list[Any] = []
        self.error: Exception | None = None
        self.exchanges = frozenset({"direct", "fanout"})
        self.control = self

    @contextmanager
    def connection_for_write(self, connect_timeout: float) -> Iterator[Any]:
        assert connect_timeout
        transport = SimpleNamespace(
            driver_type="redis", implements=SimpleNamespace(exchange_type=self.exchanges)
        )
        yield SimpleNamespace(
            transport=transport, transport_options={}, ensure_connection=self._connect
        )

    def _connect(self, **_: Any) -> None:
        if self.error:
            raise self.error

    def inspect(self, *, timeout: float, connection: Any) -> Any:
        assert timeout == 1.0
        assert connection
        return SimpleNamespace(registered=lambda: self.knows or None)

    def broadcast(
        self, command: str, how: dict[str, Any], workers: list[str], connection: Any, *,
        reply: bool, timeout: float, limit: int,
    ) -> Any:  # fmt: skip
        assert command == "redlock_placement"
        assert connection
        assert reply is True
        assert timeout == (5.0 if how["look"] else 1.0)
        assert limit == len(workers)
        self.asked.append((how["look"], workers))
        at = -1 if how["look"] else 0
        return [{worker: self.says[worker][at]} for worker in workers if self.says[worker]]


def found(
    app: Any, tasks: tuple[str, ...] = ("bank.t",), info: Any = None, answered: int = 3
) -> list[tuple[str, str, str, str]]:
    names = ("a:1", "b:1", "c:1")
    nodes: Any = SimpleNamespace(
        connections=[SimpleNamespace(name=name, database=0) for name in names]
    )
    statuses: Any = [
        SimpleNamespace(
            judgement=Judgement(name, State.VOTES),
            info={"run_id": name[0] * 40} if info is None else info,
        )
        for name in names[:answered]
    ]
    target = Target(("redis://a:1",), app=app)
    return [
        (one.trap.code, one.severity.value, one.where, one.what)
        for one in worker_findings(target, nodes, statuses, tasks)
    ]


def said(*texts: str) -> list[dict[str, str]]:
    return [{"placement": text} for text in texts]


def test_workers_that_lock_here_are_no_finding() -> None:
    app = Installation(one=said(HERE), two=said(HERE.replace("a:1", "x:1")))
    assert found(app) == []
    assert app.asked == [(False, ["one", "two"])]


def test_a_worker_elsewhere_is_an_error_that_names_both() -> None:
    app = Installation(one=said(HERE), two=said(BANK, BANK))
    assert found(app) == [
        ("RL210", "error", "two", f"redlock_key_prefix; here: {HERE}; there: {BANK}")
    ]
    assert app.asked[1] == (True, ["two"])


def test_a_worker_that_has_not_seen_a_restart_looks_first() -> None:
    assert found(Installation(one=said(RESTARTED, HERE))) == []
    [(code, _, where, what)] = found(Installation(one=said(RESTARTED, RESTARTED)))
    assert (code, where) == ("RL210", "one")
    assert what.startswith("servers at the same addresses; ")


def test_a_worker_that_locks_nothing_is_a_warning() -> None:
    app = Installation(one=said(""))
    assert found(app) == [("RL201", "warning", "one", "redlock_enabled is False there")]
    assert app.asked == [(False, ["one"])]


def test_nodes_that_do_not_tell_their_run_are_compared_by_address() -> None:
    assert found(Installation(one=said(HERE)), info={}) == []
    assert found(Installation(one=said(BANK, BANK)), info={})[0][0] == "RL210"


def test_without_a_status_of_the_nodes_nobody_is_asked() -> None:
    app = Installation(one=said(BANK))
    assert found(app, answered=0) == []
    assert app.asked == []


@pytest.mark.parametrize("says", [[], [{"error": "unknown"}], ["x"], said("\x1b[2J")])
def test_a_worker_that_gives_no_answer_is_no_finding(says: list[Any]) -> None:
    assert found(Installation(one=says)) == []


def test_workers_of_another_project_are_not_asked() -> None:
    app = Installation(one=said(BANK))
    app.knows = {"one": ["shop.t"]}
    assert found(app) == []
    app.knows = {}
    assert found(app) == []
    assert app.asked == []


def test_an_app_without_singleton_tasks_asks_nobody() -> None:
    app = Installation(one=said(BANK))
    app.error = OSError()
    assert found(app, ()) == []


def test_a_broker_that_can_not_be_reached_is_unknown_and_not_quoted() -> None:
    app = Installation(one=said(HERE))
    app.error = OSError("redis://:secret@broker")
    what = "the workers could not be asked: OSError"
    assert found(app) == [("RL210", "unknown", "broker_url", what)]


def test_workers_of_a_broker_without_broadcasts_are_not_asked() -> None:
    app = Installation(one=said(BANK))
    app.exchanges = frozenset({"direct"})
    assert found(app) == []
