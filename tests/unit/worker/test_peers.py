"""A worker tells once of each peer that locks elsewhere, and of none that does not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.messages.headers import PLACEMENT_HEADER, SERIALIZER, placement_header
from celery_redlock.redlock.placement import Placement
from celery_redlock.worker import bootsteps, signal_handlers
from celery_redlock.worker.bootsteps import ComparePlacements
from celery_redlock.worker.control import redlock_placement
from celery_redlock.worker.peers import EVENT, ROUTING_KEY, Peers, peers_of
from tests.support.fakes.fake_clock import FakeClock

A, B, C, D = (letter * 40 for letter in "abcd")
NAMES = ("a:1", "b:1", "c:1")


def body() -> None: ...


class Locked:
    """A lock whose servers are only seen when its nodes are judged."""

    def __init__(self, *servers: str, prefix: str = "redlock", names: Any = NAMES) -> None:
        self.clock = FakeClock()
        self.prefix = prefix
        self.names = names
        self.servers = servers
        self.seen: list[list[str]] = [[] for _ in servers]
        self.looks = 0

    @property
    def placement(self) -> Placement:
        nodes = [(name, 0, seen) for name, seen in zip(self.names, self.seen, strict=True)]
        return Placement.of(self.prefix, nodes)

    def judge(self) -> None:
        self.looks += 1
        for server, seen in zip(self.servers, self.seen, strict=True):
            if server not in seen:
                seen.append(server)


apps: list[Celery] = []
"""Apps of a test, which nothing else keeps."""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    apps.clear()


def peers(locked: Any, name: str = "celery@a", tasks: tuple[str, ...] = ("t",)) -> Peers:
    """Return the peers of a worker that has just looked at its nodes."""
    app = Celery("bank", set_as_current=False)
    apps.append(app)
    app.finalize()
    for shared in [name for name in app.tasks if not name.startswith("celery.")]:
        app.tasks.pop(shared)  # that of another test's module: every app has it
    for task in tasks:
        singleton_task(app=app, name=task, shared=False)(body)
    made = Peers(app, locked, name)
    made.ask_nodes()
    locked.clock.move(60.0)
    return made


def introduced(by: Peers, **more: Any) -> dict[str, Any]:
    return {"hostname": by._hostname, **by.introduction(), **more}


# ---- workers


def test_workers_on_the_same_nodes_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    here, there = peers(Locked(A, B, C)), peers(Locked(C, A, B, names=("x:1", "y:1", "z:1")), "b")
    assert not here.heard(introduced(there))
    assert not there.heard(introduced(here))
    assert caplog.messages == []


def test_a_worker_on_other_nodes_is_told_of_once_and_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, there = peers(Locked(A, B, C)), peers(Locked(A, B, D, names=("a:1", "b:1", "d:1")), "b")
    assert here.heard(introduced(there))
    assert caplog.messages == [
        (
            "peer locks elsewhere, its tasks and those of this worker do not exclude each other "
            "peer=worker b differs=redlock_nodes, of 3 here and 3 there 2 are the same "
            "here=redlock a:1/0=aaaaaaaa b:1/0=bbbbbbbb c:1/0=cccccccc "
            "there=redlock a:1/0=aaaaaaaa b:1/0=bbbbbbbb d:1/0=dddddddd"
        )
    ]
    assert caplog.records[0].levelname == "ERROR"
    # It starts again, and has to learn of it, too.
    assert here.heard(introduced(there))
    assert len(caplog.messages) == 1
    # An answer is not answered.
    assert not there.heard(introduced(here, redlock_answers="b"))
    assert len(caplog.messages) == 2


def test_a_worker_that_was_mended_is_told_of_anew(caplog: pytest.LogCaptureFixture) -> None:
    here, wrong = peers(Locked(A, B, C)), peers(Locked(A, B, C, prefix="bank"), "b")
    assert here.heard(introduced(wrong))
    assert not here.heard(introduced(peers(Locked(A, B, C), "b")))
    other = introduced(peers(Locked(A, B, C, prefix="shop"), "c"))
    assert here.heard(other)
    assert here.heard(introduced(wrong))
    assert len(caplog.messages) == 3
    assert not here.heard(introduced(peers(Locked(A, B, C), "b")))
    assert here.heard(other)
    assert len(caplog.messages) == 3, "of the other one nothing has changed"


def test_an_answer_to_another_worker_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    there = peers(Locked(A, B, C, prefix="bank"), "b")
    assert not peers(Locked(A, B, C)).heard(introduced(there, redlock_answers="c"))
    assert caplog.messages == []


def test_workers_of_another_project_may_lock_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    there = peers(Locked(A, B, C, prefix="bank"), "b", ("another",))
    assert not peers(Locked(A, B, C)).heard(introduced(there))
    assert caplog.messages == []


def test_an_introduction_has_short_digests_of_the_worker_s_tasks() -> None:
    here = peers(Locked(A, B, C), tasks=("t", "u"))
    told = here.introduction()["redlock_tasks"]
    assert [len(digest) for digest in told] == [8, 8]
    assert told == sorted(set(told))


def test_nodes_of_workers_that_agree_are_not_asked_again() -> None:
    locked = Locked(A, B, C)
    here, looks = peers(locked), locked.looks
    assert not here.heard(introduced(peers(Locked(A, B, C), "b")))
    assert locked.looks == looks


def test_another_server_at_an_address_is_told_by_workers_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    locked = Locked(A, B, C)
    here, there = peers(locked), Locked(A, B, D)
    locked.servers, looks = (A, B, C), locked.looks
    # Before a message arrives, a node may be restarted. Two workers have just looked.
    here.received(published(looked(there)))
    assert (caplog.messages, locked.looks) == ([], looks)
    assert here.heard(introduced(peers(there, "b")))
    assert "differs=servers at the same addresses" in caplog.messages[0]


def test_a_node_that_was_restarted_is_looked_at_first(caplog: pytest.LogCaptureFixture) -> None:
    restarted = Locked(A, B, C)
    here = peers(restarted)
    restarted.servers = (A, B, D)
    there = peers(Locked(A, B, D), "b")
    looks = restarted.looks
    assert not here.heard(introduced(there))
    assert restarted.looks == looks + 1
    assert caplog.messages == []


@pytest.mark.parametrize(
    "event",
    [
        {}, {"redlock_placement": 1}, {"redlock_placement": "redlock"}, {"redlock_tasks": None},
        {"redlock_tasks": {"a": 1}}, {"redlock_tasks": [[]]}, {"redlock_answers": []},
        {"redlock_answers": "b"},
    ],
)  # fmt: skip
def test_what_is_no_introduction_is_ignored(
    event: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    there = introduced(peers(Locked(A, B, C, prefix="bank"), "b"))
    assert not peers(Locked(A, B, C)).heard((there | event) if event else {})
    assert caplog.messages == []


# ---- publishers


def published(by: Any, host: str = "web", **more: Any) -> dict[str, Any]:
    return {**placement_header(by), "origin": f"gen7@{host}", **more}


def looked(locked: Locked) -> Locked:
    locked.judge()
    locked.clock.move(60.0)
    return locked


def test_a_publisher_elsewhere_is_told_of_once_for_each_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    locked = Locked(A, B, C)
    here, there = peers(locked), looked(Locked(A, B, C, prefix="bank"))
    for _ in range(3):
        here.received(published(there))
    assert [message.partition(" here=")[0] for message in caplog.messages] == [
        (
            "peer locks elsewhere, its tasks and those of this worker do not exclude each other "
            "peer=publisher on web differs=redlock_key_prefix"
        )
    ]
    # Not sooner than ten seconds after the last look at the nodes.
    here.received(published(there, "web-2"))
    assert len(caplog.messages) == 1
    locked.clock.move(10.0)
    here.received(published(there, "web-2"))
    assert "peer=publisher on web-2 " in caplog.messages[1]
    looks = locked.looks
    locked.clock.move(60.0)
    here.received(published(there))
    assert (len(caplog.messages), locked.looks) == (2, looks), "nothing new is to be found"


@pytest.mark.parametrize(
    ("origin", "host"), [("gen7@web", "web"), ("a@b@web", "web"), ("web", "web"), (None, "?")]
)
def test_a_publisher_is_named_by_its_host(
    caplog: pytest.LogCaptureFixture, origin: str | None, host: str
) -> None:
    there = looked(Locked(A, B, C, prefix="bank"))
    peers(Locked(A, B, C)).received(published(there, origin=origin))
    assert f"peer=publisher on {host} differs" in caplog.messages[0]


def test_the_number_of_peers_that_were_told_of_is_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    locked = Locked(A, B, C)
    here, there = peers(locked), looked(Locked(A, B, C, prefix="bank"))

    def receive(host: str) -> int:
        locked.clock.move(60.0)
        here.received(published(there, host))
        return len(caplog.messages)

    assert [receive(f"web-{number}") for number in range(256)] == list(range(1, 257))
    assert receive("web-0") == 256
    assert receive("web-256") == 257, "the others are forgotten"
    assert receive("web-256") == 257
    assert receive("web-0") == 258


@pytest.mark.parametrize("is_seen", [True, False])
def test_the_placement_of_a_publisher_is_read_once(
    monkeypatch: pytest.MonkeyPatch, *, is_seen: bool
) -> None:
    locked = Locked(A, B, C)
    here, there = peers(locked), looked(Locked(A, B, C))
    if not is_seen:
        locked.seen[2] = []
    texts: list[object] = []
    read = Placement.read

    def note(text: object) -> Placement | None:
        texts.append(text)
        return read(text)

    monkeypatch.setattr(Placement, "read", note)
    for _ in range(3):
        here.received(published(there))
    assert len(texts) == (1 if is_seen else 3), "a node that was not seen may be any"


def test_a_publisher_on_the_same_nodes_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    locked = Locked(A, B, C)
    here = peers(locked)
    locked.servers = (A, B, D)
    restarted = looked(Locked(D, A, B, names=("x:1", "y:1", "z:1")))
    for _ in range(3):
        here.received(published(restarted))
    assert locked.looks == 2
    assert caplog.messages == []


def test_a_message_from_before_the_worker_is_not_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, before = peers(Locked(A, B, C)), Locked(A, B, D, names=("x:1", "y:1", "z:1"))
    before.judge()
    here.received(published(before))
    assert caplog.messages == []


def test_a_node_that_was_never_seen_is_compared_again(caplog: pytest.LogCaptureFixture) -> None:
    locked = Locked(A, B, C)
    here, there = peers(locked), looked(Locked(A, B, D, names=("a:1", "b:1", "d:1")))
    locked.seen[2] = []
    locked.servers = (A, B)  # zip would be strict: the third one does not answer
    locked.judge = lambda: None  # type: ignore[method-assign]
    here.received(published(there))
    assert caplog.messages == []
    locked.seen[2] = [C]
    here.received(published(there))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "header", [None, 1, "", [], {}, "x", "99999999999 ", "99999999999 redlock", "² redlock a:1/0="]
)
def test_what_is_no_placement_is_ignored(header: object, caplog: pytest.LogCaptureFixture) -> None:
    peers(Locked(A, B, C)).received({PLACEMENT_HEADER: header})
    assert caplog.messages == []


def test_texts_of_others_are_shown_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    there = looked(Locked(A, B, C, prefix="bank"))
    peers(Locked(A, B, C)).received(published(there, "\x1b[2J\n"))
    assert "\\x1b[2J\\n" in caplog.messages[0]
    assert caplog.messages[0].isprintable()


@pytest.mark.parametrize("has_lock", [True, False])
def test_each_message_of_the_worker_is_compared(
    caplog: pytest.LogCaptureFixture, *, has_lock: bool
) -> None:
    locked = Locked(A, B, C)
    here = peers(locked)
    [app] = apps

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    request = SimpleNamespace(
        id="task-1", task=app.tasks["t" if has_lock else "plain"], content_type="application/json",
        request_dict=published(looked(Locked(A, B, C, prefix="bank"))),
    )  # fmt: skip
    signal_handlers._on_received(request=request)
    assert caplog.messages == []
    peers_of[app] = here
    signal_handlers._on_received(request=request)
    assert "differs=redlock_key_prefix" in caplog.messages[0]
    assert (SERIALIZER in request.request_dict) is has_lock


# ---- step and command


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A consumer whose gossip is on."""
    app = Celery("bank", set_as_current=False)
    app.conf.update(redlock_nodes=["redis://a"])
    singleton_task(app=app, name="t", shared=False)(body)
    locked = Locked(A, B, C)
    monkeypatch.setattr(bootsteps, "redlock_of", {app: locked}.__getitem__)
    sent: list[Any] = []
    timers: list[Any] = []

    def call_after(seconds: float, function: Any) -> None:
        assert seconds == 1.0
        timers.append(function)

    return SimpleNamespace(
        app=app, hostname="celery@a", sent=sent, timers=timers, locked=locked,
        gossip=SimpleNamespace(enabled=True, event_handlers={}),
        event_dispatcher=SimpleNamespace(
            send=lambda kind, **more: sent.append((kind, {"hostname": "celery@a", **more}))
        ),
        timer=SimpleNamespace(call_after=call_after),
    )  # fmt: skip


def test_a_worker_introduces_itself_until_it_hears_that(consumer: Any) -> None:
    ComparePlacements(consumer).start(consumer)
    for _ in range(2):
        consumer.timers.pop()()
    [(kind, first), second] = consumer.sent
    assert (kind, second) == (EVENT, (EVENT, first))
    assert first["redlock_placement"].startswith("redlock a:1/0=")
    on_event = consumer.gossip.event_handlers[ROUTING_KEY]
    # Its answer to another one is none.
    on_event({**first, "redlock_answers": "celery@b"})
    consumer.timers.pop()()
    assert len(consumer.sent) == 3
    on_event(first)
    consumer.timers.pop()()
    assert consumer.timers == []
    assert (len(consumer.sent), consumer.locked.looks) == (3, 1)


def test_a_worker_that_hears_no_event_gives_up(consumer: Any) -> None:
    ComparePlacements(consumer).start(consumer)
    while consumer.timers:
        consumer.timers.pop()()
    assert len(consumer.sent) == 30


def test_a_worker_answers_one_that_locks_elsewhere(consumer: Any) -> None:
    ComparePlacements(consumer).start(consumer)
    there = introduced(peers(Locked(A, B, C, prefix="bank"), "celery@b"))
    consumer.gossip.event_handlers[ROUTING_KEY](there)
    [(kind, answer)] = consumer.sent
    assert (kind, answer["redlock_answers"]) == (EVENT, "celery@b")


def test_an_error_in_a_comparison_does_not_end_the_consumer(
    consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ComparePlacements(consumer).start(consumer)
    there = introduced(peers(Locked(A, B, C, prefix="bank"), "celery@b"))
    consumer.locked.judge = lambda: 1 / 0
    consumer.gossip.event_handlers[ROUTING_KEY](there)
    assert caplog.messages == ["introduction of another worker not handled"]


def test_a_worker_that_has_no_gossip_introduces_nothing(consumer: Any) -> None:
    consumer.gossip.enabled = False
    ComparePlacements(consumer).start(consumer)
    assert consumer.timers == []
    assert consumer.app in peers_of


def test_a_worker_without_locks_compares_nothing(consumer: Any) -> None:
    consumer.app.conf.redlock_enabled = False
    step = ComparePlacements(consumer)
    step.start(consumer)
    step.stop(consumer)
    assert consumer.app not in peers_of
    assert redlock_placement(SimpleNamespace(app=consumer.app)) == {"placement": ""}


def test_the_command_tells_the_placement_and_looks_if_asked_to(consumer: Any) -> None:
    ComparePlacements(consumer).start(consumer)
    state = SimpleNamespace(app=consumer.app)
    text = "redlock a:1/0=aaaaaaaa b:1/0=bbbbbbbb c:1/0=cccccccc"
    unseen = "redlock a:1/0= b:1/0= c:1/0="
    assert redlock_placement(state) == {"placement": unseen}
    assert redlock_placement(state, look=True) == {"placement": text}
