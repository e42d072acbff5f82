from bank import app
from celery_singleton import Singleton

from celery_redlock import SingletonTask

app.conf.singleton_backend_url = app.conf.broker_url


class BothLocks(Singleton, SingletonTask):
    abstract = True
    lock_lifetime = "until_executed"


@app.task(
    base=BothLocks,
    name="bank.sync",
    unique_on=["account_id"],
    lock_expiry=3600,
    lock_key="{account_id}",
)
def sync(account_id, full=False):
    return account_id
