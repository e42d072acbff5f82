"""Background tasks of the billing service."""

from __future__ import annotations

from celery_redlock import SingletonTask, singleton_task

from .app import app
from .ledger import Ledger, Run, StaleToken
from .tax_office import ask_for_tax


# The lease is short, since it is renewed while the task runs: a machine that vanishes blocks its
# invoice for three seconds at most. A run whose lease is lost continues ("continue"): an interrupt
# could come too late, and the ledger refuses its writes.
@singleton_task(
    app=app,
    bind=True,
    throws=(StaleToken,),
    lock_key="{invoice}",
    lock_ttl=3,
    lock_on_lost="continue",
)
def issue_invoice(self: SingletonTask, invoice: str, net_cents: int, *, fencing_token: int) -> int:
    """Issue `invoice` once, and return the number of its document.

    Raises:
        StaleToken: A newer run has claimed the invoice while this one was frozen.
    """
    ledger = Ledger(self.app.conf.billing_ledger)
    run = Run(str(self.request.id), str(self.request.hostname))
    document = ledger.claim(invoice, fencing_token, run)
    if document is None:
        tax_cents = ask_for_tax(self.app.conf.billing_tax_office, net_cents)
        document = ledger.issue(invoice, fencing_token, net_cents + tax_cents, run)
    return document.number
