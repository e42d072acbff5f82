"""What a claim costs a tick, and what replicas that have nothing to do cost the nodes."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import crontab

from celery_redlock.beat import RedlockScheduler
from celery_redlock.runtime import redlock_of
from celery_redlock.testing import Server, Servers
from celery_redlock.ticks import Tick

from .measure import Report, first_within, interleaved, ratio

# Celery's own code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

PLAIN, CLAIMED, TAKEN = "published", "claimed, published, kept", "seen to be published"
REPLICAS = 3


@contextmanager
def scheduler(broker: Server, nodes: Servers, **schedules: Any) -> Iterator[Any]:
    app = Celery(uuid.uuid4().hex, broker=broker.url, set_as_current=False)
    app.conf.update(
        redlock_nodes=nodes.urls,
        redlock_restart_guard=False,
        redlock_node_timeout=2.0,
        redlock_beat_scheduler=Scheduler,
        beat_schedule={name: {"task": "task", "schedule": due} for name, due in schedules.items()},
    )
    made = RedlockScheduler(app)
    yield made
    made.close()
    redlock_of(app).close()
    app.close()


def test_a_claim_costs_about_as_much_as_the_message(
    five: Servers, servers: Any, seconds: float, report: Report
) -> None:
    [broker] = servers(1)
    with scheduler(broker, five) as one, scheduler(broker, five) as other:
        # Claims are named after the app.
        app = one.app.main
        entry = ScheduleEntry("entry", "task", last_run_at=one._now(), app=one.app)
        numbers = count()
        now = one._now()

        def tick() -> Tick:
            # Each a microsecond older than the one before: all are in time.
            return Tick(entry, now - next(numbers) * dt.timedelta(microseconds=1), app)

        def take(replica: Any, tick: Tick) -> None:
            replica._queue.add([tick])
            replica._queue.work()
            assert not len(replica._queue)

        def measure(seconds: float) -> Any:
            nonlocal now
            now = one._now()
            published = tick()
            take(other, published)
            calls = {
                PLAIN: lambda: Scheduler.apply_async(
                    one, tick().entry_to_publish(), producer=one.producer, advance=False
                ),
                CLAIMED: lambda: take(one, tick()),
                TAKEN: lambda: take(one, Tick(entry, published.slot, app)),
            }
            return interleaved(calls, seconds)

        now = one._now()
        limits = {CLAIMED: 3.5, TAKEN: 1.5}
        variants, note = first_within(limits, measure, seconds)
    report.append(("one tick, five nodes", variants, note))
    for name, limit in limits.items():
        assert ratio(variants, name) <= limit


def tick_for(seconds: float, replica: Any) -> None:
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, replica.tick()))


@pytest.mark.parametrize(
    ("entries", "most"),
    [
        ({"yearly": crontab("0", "4", day_of_month="1", month_of_year="1")}, 0.5),
        # The one that publishes: claim and keep. The others: a look.
        ({"every-second": 1.0}, 0.5 + (REPLICAS + 1) / REPLICAS * 1.5),
    ],
    ids=["nothing due", "one tick a second"],
)
def test_replicas_ask_the_nodes_little(
    five: Servers,
    servers: Any,
    seconds: float,
    capsys: pytest.CaptureFixture[str],
    entries: dict[str, Any],
    most: float,
) -> None:
    [broker] = servers(1)
    lasts = min(max(seconds, 10.0), 30.0)
    replicas = [scheduler(broker, five, **entries) for _ in range(REPLICAS)]
    with replicas[0] as a, replicas[1] as b, replicas[2] as c:
        name = uuid.uuid4().hex
        for replica in (a, b, c):
            replica.app.main = name
        threads = [
            threading.Thread(target=tick_for, args=(lasts, replica)) for replica in (a, b, c)
        ]
        with five[0].client() as client:
            client.config_resetstat()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            asked = client.info("commandstats")
            kept = [key for key in client.scan_iter("*") if b"beat" in key]
            size = sum(client.memory_usage(key) for key in kept)
    scripts = asked.get("cmdstat_evalsha", {"calls": 0})["calls"]
    others = {
        command.removeprefix("cmdstat_"): figures["calls"]
        for command, figures in asked.items()
        if command not in ("cmdstat_evalsha", "cmdstat_config|resetstat")
    }
    # What the scripts do is counted as well; of TIME each grant asks once.
    clock_checks = others.get("time", 0) - others.get("set", 0) // 2
    with capsys.disabled():
        print(  # noqa: T201  # it is what is to be shown
            f"\n{REPLICAS} replicas, {', '.join(entries)}: a node is asked "
            f"{(scripts + clock_checks) / lasts:.2f} times a second "
            f"({scripts / lasts:.2f} scripts, {clock_checks / lasts:.2f} clock checks); "
            f"{len(kept)} keys, {size} bytes after {lasts:.0f} s; {others}"
        )
    assert (scripts + clock_checks) / lasts / REPLICAS <= most
