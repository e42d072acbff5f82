from bank import app
from celery_once import QueueOnce

app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": app.conf.broker_url, "default_timeout": 3600},
}


@app.task(base=QueueOnce, name="bank.sync", once={"graceful": True, "keys": ["account_id"]})
def sync(account_id, full=False):
    return account_id
