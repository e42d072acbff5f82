from celery_redlock import singleton_task

from .models import Closing, Invoice


@singleton_task(lock_key="{invoice_id}")
def pay(invoice_id, *, fencing_token=None):
    # One statement: a run that was paused, and lost its lock, changes no row.
    unpaid = Invoice.objects.filter(pk=invoice_id, paid_under__lt=fencing_token)
    unpaid.update(paid_under=fencing_token)


@singleton_task(bind=True)
def close_day(self):
    Closing.objects.create(tick=self.request.headers["redlock_tick"])
