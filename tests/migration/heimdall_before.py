from bank import app
from celery_heimdall import HeimdallTask


@app.task(
    base=HeimdallTask,
    name="bank.sync",
    heimdall={
        "unique": True,
        "unique_timeout": 3600,
        "unique_lock_blocking": False,
        "key": lambda args, kwargs: f"sync-{args[0]}",
    },
)
def sync(account_id, full=False):
    return account_id
