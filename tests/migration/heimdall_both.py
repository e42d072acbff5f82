from bank import app
from celery_heimdall import HeimdallTask

from celery_redlock import SingletonTask


class BothLocks(HeimdallTask, SingletonTask):
    abstract = True
    lock_lifetime = "until_executed"


@app.task(
    base=BothLocks,
    name="bank.sync",
    heimdall={
        "unique": True,
        "unique_timeout": 3600,
        "unique_lock_blocking": False,
        "key": lambda args, kwargs: f"sync-{args[0]}",
    },
    lock_key="{account_id}",
)
def sync(account_id, full=False):
    return account_id
