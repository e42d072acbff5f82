"""What a new user does: an app, a worker, a locked task. Copied and run by `wheel.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from uuid import uuid4

from celery import Celery
from kombu import Connection, Queue

from celery_redlock import singleton_task
from celery_redlock.testing import start_servers

AMQP_VARIABLE = "REDLOCK_TEST_AMQP_URL"

app = Celery("trial")
app.conf.update(
    broker_url=os.environ.get("TRIAL_BROKER"),
    result_backend=os.environ.get("TRIAL_BACKEND"),
    redlock_nodes=os.environ.get("TRIAL_NODES", "").split(),
    redlock_restart_guard=False,
    redlock_node_timeout=2.0,
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ.get("TRIAL_QUEUE", ""),
    task_queues=[Queue(os.environ.get("TRIAL_QUEUE", ""), auto_delete=True)],
)


@singleton_task(app=app, lock_key="{account_id}")
def sync(account_id: int, *, fencing_token: int) -> int:  # noqa: ARG001 - in the key
    """Return the token."""
    return fencing_token


def main() -> None:
    """Run it on each broker, each in a process that was started for it."""
    names = ("celery-redlock", "celery", "kombu", "redis", "hiredis", "click")
    print("wheel:", ", ".join(f"{name} {version(name)}" for name in names), flush=True)
    with start_servers(4) as servers:
        backend, *nodes = servers.urls
        for broker in [backend, *rabbitmq()]:
            env = os.environ | {
                "TRIAL_BROKER": broker,
                "TRIAL_BACKEND": backend,
                "TRIAL_NODES": " ".join(nodes),
                "TRIAL_QUEUE": f"celery-redlock-{uuid4()}",
            }
            subprocess.run([sys.executable, __file__, "run"], env=env, check=True)


def rabbitmq() -> list[str]:
    """Return the broker that the environment names, else one on this machine, or none."""
    named = os.environ.get(AMQP_VARIABLE)
    url = named or "amqp://guest:guest@127.0.0.1:5672//"
    with Connection(url, connect_timeout=5) as broker:
        try:
            broker.connect()
        except OSError as error:
            if named:
                raise
            print(f"no RabbitMQ ({error}): left out; {AMQP_VARIABLE} may name one", flush=True)
            return []
    return [url]


def run() -> None:
    """Have a worker run the task twice."""
    celery = [sys.executable, "-m", "celery", "--quiet", "-A", "trial", "worker", "-c", "1"]
    with subprocess.Popen(celery) as worker:
        try:
            first, second = [sync.delay(7).get(timeout=60) for _ in range(2)]
        finally:
            worker.terminate()
    if not 0 < first < second:
        raise SystemExit(f"tokens {first}, {second} do not grow")
    print(f"  {app.connection().as_uri()}: tokens {first} < {second}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        main()
