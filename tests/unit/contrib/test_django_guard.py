"""Guards for the Django ORM: which rows and effects a run may write, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.contrib.guards import StaleToken
from tests.support.fakes.django_site import Router

from django.db import connections, models, transaction  # isort: skip  # once it is configured
from celery_redlock.contrib.guards.django import EffectModel, Fenced  # isort: skip

OLD, NEW = 2**50, 2**50 + 1


class Account(Fenced):
    balance = models.IntegerField(default=0)

    class Meta:
        app_label = "bank"


class Savings(Account):
    """The fence is in the table of accounts."""

    rate = models.IntegerField(default=0)

    class Meta:
        app_label = "bank"


class Closed(Account):
    class Meta:
        app_label = "bank"
        proxy = True


class Sent(EffectModel):
    class Meta:
        app_label = "bank"


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    def on_each(action: str, *of: type[models.Model]) -> None:
        for alias in connections:
            with connections[alias].schema_editor() as editor:
                for model in of:
                    getattr(editor, action)(model)

    on_each("create_model", Account, Savings, Sent)
    Account.objects.create(pk=1, balance=1000)
    yield
    on_each("delete_model", Savings, Account, Sent)


def balance() -> int:
    return int(Account.objects.get(pk=1).balance)


# --- rows -----------------------------------------------------------------------------------------


def test_a_row_is_written_under_the_latest_claim_only() -> None:
    old = Account.claim(1, OLD)
    new = Account.claim(1, NEW)
    with pytest.raises(StaleToken) as caught:
        old.write(balance=1001)
    assert (caught.value.resource, caught.value.token) == ("bank.Account:1", OLD)
    new.write(balance=models.F("balance") + 10)
    assert balance() == 1010
    again = Account.claim(1, NEW)
    again.write(balance=5)
    assert (again.balance, balance()) == (5, 5)


@pytest.mark.parametrize(("pk", "token"), [(1, OLD), (2, NEW)], ids=["older run", "no such row"])
def test_a_row_that_can_not_be_claimed_is_stale(pk: int, token: int) -> None:
    Account.claim(1, NEW)
    with pytest.raises(StaleToken) as caught:
        Account.claim(pk, token)
    assert (caught.value.resource, caught.value.token) == (f"bank.Account:{pk}", token)


def test_a_run_without_a_token_claims_no_row() -> None:
    with pytest.raises(StaleToken, match=r"'bank\.Account:1' needs a fencing token"):
        Account.claim(1, None)


def test_a_claim_in_a_transaction_is_refused() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="claim before it"):
        Account.claim(1, NEW)
    assert Account.objects.get(pk=1).fence == 0


@pytest.fixture
def _in_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are in another database than the default one."""
    Account.objects.using("replica").create(pk=1)
    monkeypatch.setattr(Router, "reads_from", "replica")
    monkeypatch.setattr(Router, "writes_to", "replica")


@pytest.mark.usefixtures("_in_replica")
def test_a_transaction_counts_in_the_database_of_the_rows() -> None:
    with transaction.atomic(using="replica"):
        with pytest.raises(RuntimeError, match="claim before it"):
            Account.claim(1, NEW)
        assert Sent.once("letter:1", NEW).is_new
    with transaction.atomic():
        Account.claim(1, NEW)
        with pytest.raises(RuntimeError, match="no transaction is open"):
            Sent.once("letter:2", NEW)


def test_of_two_rows_under_one_token_only_one_is_written() -> None:
    Account.objects.create(pk=2, balance=5)
    Account.claim(1, NEW)
    Account.claim(2, NEW).write(balance=6)
    assert balance() == 1000


def test_save_leaves_the_fence_and_writes_the_rest() -> None:
    seen_before = Account.objects.get(pk=1)
    old, new = Account.claim(1, OLD), Account.claim(1, NEW)
    for row, value in ((seen_before, 1), (old, 2)):
        row.balance = value
        row.save()
        assert balance() == value
    with pytest.raises(StaleToken):
        old.write(balance=1001)
    new.write(balance=1010)
    Account.objects.create(pk=2, fence=NEW)
    with pytest.raises(StaleToken):
        Account.claim(2, OLD)


def test_a_write_of_nothing_is_an_error() -> None:
    with pytest.raises(TypeError, match="at least one field"):
        Account.claim(1, NEW).write()


def test_a_claim_reads_the_database_that_it_was_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    Account.objects.using("replica").create(pk=1, balance=0)
    monkeypatch.setattr(Router, "reads_from", "replica")
    assert Account.claim(1, NEW).balance == 1000


def test_a_claim_that_was_overtaken_meanwhile_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update = models.QuerySet.update

    def overtaken(rows: Any, **changes: Any) -> int:
        monkeypatch.undo()
        changed = update(rows, **changes)
        Account.claim(1, NEW)
        return int(changed)

    monkeypatch.setattr(models.QuerySet, "update", overtaken)
    old = Account.claim(1, OLD)
    with pytest.raises(StaleToken):
        old.write(balance=1001)
    assert balance() == 1000


def test_a_fence_in_the_table_of_a_parent_is_refused() -> None:
    Savings.objects.create(pk=2)
    words = r"the fence of bank\.Savings is in the table of Account: a claim must be of one table"
    with pytest.raises(TypeError, match=words):
        Savings.claim(2, NEW)
    assert Account.objects.get(pk=2).fence == 0
    assert Closed.claim(1, NEW).balance == 1000


# --- effects --------------------------------------------------------------------------------------


def test_an_effect_is_new_for_the_first_run_only() -> None:
    with transaction.atomic():
        effect = Sent.once("letter:1", OLD)
        assert (effect.name, effect.is_new, effect.result) == ("letter:1", True, None)
        effect.store({"pages": 2})
    for token in (OLD, NEW):
        with transaction.atomic():
            effect = Sent.once("letter:1", token)
            assert (effect.is_new, effect.result) == (False, {"pages": 2})
    with transaction.atomic():
        other = Sent.once("letter:2", OLD)
        assert other.is_new
        other.store({"pages": 3})
    with transaction.atomic():
        assert Sent.once("letter:1", OLD).result == {"pages": 2}
    assert [str(one) for one in Sent.objects.order_by("name")] == ["letter:1", "letter:2"]


@pytest.mark.parametrize("token", [OLD, None])
def test_an_effect_of_a_newer_run_is_stale(token: int | None) -> None:
    with transaction.atomic():
        Sent.once("letter:1", NEW)
        with pytest.raises(StaleToken) as caught:
            Sent.once("letter:1", token)
    assert (caught.value.resource, caught.value.token) == ("letter:1", token)


def test_without_a_transaction_no_effect_is_done() -> None:
    with pytest.raises(RuntimeError, match="no transaction is open; an effect"):
        Sent.once("letter:1", NEW)
    with transaction.atomic():
        effect = Sent.once("letter:1", NEW)
    with pytest.raises(RuntimeError, match="no transaction is open; an effect"):
        effect.store("late")


def test_no_result_is_stored_for_an_effect_that_was_rolled_back() -> None:
    with transaction.atomic():
        effect = Sent.once("letter:1", OLD)
        transaction.set_rollback(True)
    with transaction.atomic():
        assert Sent.once("letter:1", NEW).is_new
        with pytest.raises(RuntimeError, match="rolled back"):
            effect.store("of another run's effect")
