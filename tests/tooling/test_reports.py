"""What tests log, whatever it is, reaches the process that prints it."""

from __future__ import annotations

import json
import logging

import pytest


def test_a_report_may_hold_lone_surrogates(request: pytest.FixtureRequest) -> None:
    logging.getLogger().error("\ud800")
    report = pytest.TestReport(
        request.node.nodeid,
        ("file", 1, "test"),
        {},
        "failed",
        "got '\ud800'",
        "call",
        [("Captured log call", "\ud800, \u00fc")],
    )
    hook = request.config.hook.pytest_report_to_serializable
    data = hook(config=request.config, report=report)
    json.dumps(data, ensure_ascii=False).encode()
    assert (data["longrepr"], data["sections"]) == (
        "got '\\ud800'",
        [("Captured log call", "\\ud800, \u00fc")],
    )
    assert data["location"] == ("file", 1, "test")
