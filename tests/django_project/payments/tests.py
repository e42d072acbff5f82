from contextlib import ExitStack

from bank import celery_app
from celery import chord
from django.test import TestCase

from celery_redlock import DuplicateTask
from celery_redlock.testing import Locks, locked_on, start_memory_servers

from .models import Invoice
from .tasks import close_day, pay


class PaymentTests(TestCase):
    def setUp(self):
        stack = ExitStack()
        self.addCleanup(stack.close)
        nodes = stack.enter_context(start_memory_servers(3))
        stack.enter_context(locked_on(celery_app, nodes.urls))
        self.locks = stack.enter_context(Locks(celery_app))
        self.invoice = Invoice.objects.create()

    def test_an_invoice_is_paid_after_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post(f"/invoices/{self.invoice.pk}/pay")
            assert self.locks.runs(pay, self.invoice.pk) == 0
        self.locks.assert_ran_once(pay, self.invoice.pk)
        self.invoice.refresh_from_db()
        assert self.invoice.paid_under > 0

    def test_a_payment_that_is_under_way_is_not_made_twice(self):
        with self.locks.hold(pay, self.invoice.pk):
            self.locks.assert_duplicate(pay.apply((self.invoice.pk,)))

    def test_a_plain_call_has_no_token_but_that_of_the_test(self):
        with self.assertRaises(ValueError):  # Django compares no column with None
            pay(self.invoice.pk)
        pay(self.invoice.pk, fencing_token=7)
        self.invoice.refresh_from_db()
        assert self.invoice.paid_under == 7

    def test_a_payment_in_this_process_has_a_token(self):
        pay.apply((self.invoice.pk,)).get()
        self.invoice.refresh_from_db()
        assert self.invoice.paid_under > 7

    def test_a_chord_fails_with_a_duplicate_in_it(self):
        total = chord([pay.si(self.invoice.pk)], close_day.si())
        with self.locks.hold(pay, self.invoice.pk), self.assertRaises(DuplicateTask):
            total.delay()
        assert self.locks.runs(close_day) == 0
