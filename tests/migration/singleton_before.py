from bank import app
from celery_singleton import Singleton

app.conf.singleton_backend_url = app.conf.broker_url


@app.task(base=Singleton, name="bank.sync", unique_on=["account_id"], lock_expiry=3600)
def sync(account_id, full=False):
    return account_id
