from bank import app

from celery_redlock import singleton_task


@singleton_task(app=app, name="bank.sync", lock_lifetime="until_executed", lock_key="{account_id}")
def sync(account_id, full=False):
    return account_id
