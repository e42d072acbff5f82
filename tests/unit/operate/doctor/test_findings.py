"""A finding tells its trap and a remedy that can be pasted into a shell."""

from __future__ import annotations

from celery_redlock.operate.doctor.traps import DOWN, MISSED, Finding, Severity


def test_a_finding_is_a_warning_about_no_key_by_default() -> None:
    assert DOWN.at("a:1", "refused") == Finding(DOWN, Severity.WARNING, "a:1", "refused", "")
    noted = MISSED.at("beat entry night", "late", Severity.ERROR, key="k")
    assert noted == Finding(MISSED, Severity.ERROR, "beat entry night", "late", "k")


def test_a_remedy_names_the_command_and_the_quoted_key() -> None:
    finding = MISSED.at("beat entry night", "late", key="%beat:a b")
    assert "`celery -A proj redlock release '%beat:a b'`" in finding.fix()
    assert "`redlock -C x release '%beat:a b'`" in finding.fix("redlock -C x")
    assert "`redlock -C x release KEY`" in MISSED.remedy("redlock -C x")
    assert MISSED.at("beat entry night", "late").fix("redlock") == MISSED.remedy("redlock")


def test_a_finding_as_json_has_the_whole_trap() -> None:
    assert MISSED.at("beat entry night", "late", key="k").as_json("redlock") == {
        "code": "RL302",
        "severity": "warning",
        "title": MISSED.title,
        "where": "beat entry night",
        "what": "late",
        "why": MISSED.why,
        "fix": MISSED.remedy("redlock").replace("KEY", "k"),
        "docs": "docs/reference/doctor.md#rl302",
    }
