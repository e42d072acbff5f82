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

from celery_redlock.beat.scheduler import RedlockScheduler
from celery_redlock.beat.ticks import Tick
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.testing import Server, Servers
from tools.benchmarks.page import Page
from tools.benchmarks.sampling import interleaved, timed

# Celery's own code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

PLAIN, CLAIMED, TAKEN = "published", "claimed, published, kept", "seen to be published"
REPLICAS = 3
MOST_S = 8.0


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


def test_a_tick(five: Servers, servers: Any, seconds: float, page: Page) -> None:
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
            replica._queue.process_ready()
            assert not len(replica._queue)

        published = tick()
        take(other, published)
        calls = {
            PLAIN: lambda: Scheduler.apply_async(
                one, tick().entry_to_publish({}), producer=one.producer, advance=False
            ),
            CLAIMED: lambda: take(one, tick()),
            TAKEN: lambda: take(one, Tick(entry, published.slot, app)),
        }
        # A tick that is too old is not published.
        blocks = {name: timed(call) for name, call in calls.items()}
        variants = interleaved(blocks, min(seconds / 4, MOST_S))
    page.add("tick", "beat: one tick, five nodes", [variant.row() for variant in variants])


def tick_for(seconds: float, replica: Any) -> None:
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, replica.tick()))


@pytest.mark.parametrize(
    ("schedule", "entries"),
    [
        ("nothing due", {"yearly": crontab("0", "4", day_of_month="1", month_of_year="1")}),
        ("one tick a second", {"every-second": 1.0}),
    ],
    ids=["nothing due", "one tick a second"],
)
def test_what_replicas_ask_of_the_nodes(
    five: Servers,
    servers: Any,
    seconds: float,
    page: Page,
    schedule: str,
    entries: dict[str, Any],
) -> None:
    [broker] = servers(1)
    lasts = max(seconds / 2, 5.0)
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
            calls = {
                command: figures["calls"]
                for command, figures in client.info("commandstats").items()
            }
            kept = [key for key in client.scan_iter("*") if b"beat" in key]
            size = sum(client.memory_usage(key) for key in kept)
    scripts = calls.get("cmdstat_evalsha", 0)
    row = {
        "name": schedule,
        "scripts_per_s": scripts / lasts,
        "all_commands_per_s": sum(calls.values()) / lasts,
        "keys": len(kept),
        "bytes": size,
    }
    page.add("beat", f"beat: what {REPLICAS} replicas ask of a node", [row])
