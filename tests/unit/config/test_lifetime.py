"""What each lifetime holds, and when: one table."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from celery_redlock.config.options import Lifetime


class Claims(NamedTuple):
    """The properties of `Lifetime`."""

    reserves_at_publish: bool
    reserves_pending_slot: bool
    holds_while_running: bool
    holds_across_retries: bool
    is_throttle: bool


YES, NO = True, False
TABLE = {
    #                                            publish  slot  run  retry  throttle
    Lifetime.WHILE_EXECUTING:             Claims(NO,      NO,   YES, NO,    NO),
    Lifetime.UNTIL_EXECUTING:             Claims(YES,     NO,   NO,  NO,    NO),
    Lifetime.UNTIL_EXECUTED:              Claims(YES,     NO,   YES, YES,   NO),
    Lifetime.UNTIL_AND_WHILE_EXECUTING:   Claims(YES,     YES,  YES, NO,    NO),
    Lifetime.UNTIL_EXPIRED:               Claims(YES,     NO,   NO,  NO,    YES),
}  # fmt: skip


@pytest.mark.parametrize("lifetime", Lifetime)
def test_a_lifetime_claims_what_the_table_says(lifetime: Lifetime) -> None:
    claimed = Claims(*(getattr(lifetime, name) for name in Claims._fields))
    assert claimed == TABLE[lifetime]
