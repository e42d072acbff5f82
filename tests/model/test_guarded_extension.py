"""Whether a node that was healed inside its restart guard may count for an extension."""

from __future__ import annotations

import pytest

from . import extensions
from .explorer import explore
from .extensions import Extensions


@pytest.mark.long
def test_an_extension_by_a_guarded_node_lets_two_hold() -> None:
    found = explore(Extensions(guarded_count=True))
    assert found.violation == "two holders", str(found)


@pytest.mark.long
def test_an_extension_without_guarded_nodes_has_one_holder() -> None:
    found = explore(Extensions(guarded_count=False))
    assert found.holds, str(found)
    assert found.fired["forgets everything"]
    assert {(True, False), (True, True), (False, True)} <= {*found.landmarks}


def test_a_guard_shorter_than_a_lock_lets_two_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "GUARD", extensions.TTL - 1)
    found = explore(Extensions(guarded_count=False))
    assert found.violation == "two holders", str(found)
