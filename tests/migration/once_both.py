from bank import app
from celery_once import QueueOnce

from celery_redlock import SingletonTask

app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": app.conf.broker_url, "default_timeout": 3600},
}


class BothLocks(QueueOnce, SingletonTask):
    abstract = True
    lock_lifetime = "until_executed"


@app.task(
    base=BothLocks,
    name="bank.sync",
    once={"graceful": True, "keys": ["account_id"]},
    lock_key="{account_id}",
)
def sync(account_id, full=False):
    return account_id
