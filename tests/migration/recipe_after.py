from bank import app

from celery_redlock import singleton_task


@singleton_task(app=app, name="bank.import_feed", lock_key=["url"])
def import_feed(url):
    return f"imported {url}"
