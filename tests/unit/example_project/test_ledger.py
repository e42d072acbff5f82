"""The example project's ledger: the resource that checks the fencing token."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_project.ledger import Ledger, Run, StaleToken

OLDER = Run("older task", "worker one")
NEWER = Run("newer task", "worker two")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def actions(ledger: Ledger) -> list[tuple[str, int]]:
    return [(entry.action, entry.token) for entry in ledger.journal()]


def test_a_claimed_invoice_is_issued_with_the_next_number(ledger: Ledger) -> None:
    for token, invoice in enumerate(["INV-1", "INV-2"], start=1):
        assert ledger.claim(invoice, token, NEWER) is None
        assert ledger.issue(invoice, token, 120, NEWER).number == token
    assert [document.invoice for document in ledger.documents()] == ["INV-1", "INV-2"]


def test_a_claim_finds_what_was_issued_before(ledger: Ledger) -> None:
    ledger.claim("INV-1", 7, OLDER)
    issued = ledger.issue("INV-1", 7, 120, OLDER)
    assert ledger.claim("INV-1", 8, NEWER) == issued


def test_a_write_with_a_stale_token_is_refused_and_recorded(ledger: Ledger) -> None:
    ledger.claim("INV-1", 7, OLDER)
    ledger.claim("INV-1", 8, NEWER)
    with pytest.raises(StaleToken) as caught:
        ledger.issue("INV-1", 7, 120, OLDER)
    assert (caught.value.token, caught.value.fence) == (7, 8)
    assert ledger.documents() == []
    assert actions(ledger) == [("claimed", 7), ("claimed", 8), ("refused", 7)]


@pytest.mark.parametrize("token", [7, 8])
def test_a_token_that_is_not_higher_claims_nothing(ledger: Ledger, token: int) -> None:
    ledger.claim("INV-1", 8, NEWER)
    with pytest.raises(StaleToken):
        ledger.claim("INV-1", token, OLDER)
    assert ledger.issue("INV-1", 8, 120, NEWER).number == 1


def test_a_token_that_never_claimed_writes_nothing(ledger: Ledger) -> None:
    with pytest.raises(StaleToken):
        ledger.issue("INV-1", 9, 120, NEWER)
    assert ledger.documents() == []


def test_the_tokens_of_two_invoices_are_independent(ledger: Ledger) -> None:
    ledger.claim("INV-1", 8, NEWER)
    assert ledger.claim("INV-2", 7, OLDER) is None
