"""No password of a node is shown where Celery shows its configuration."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.app import utils
from celery.utils.serialization import jsonify

from celery_redlock.config.redaction import hide_nodes
from celery_redlock.config.settings import settings_from
from tests.support.root import ROOT

SECRET = "sesame"  # noqa: S105
FORMS: list[Any] = [
    [f"redis://user:{SECRET}@a:1/0"],
    (f"redis://:{SECRET}@a", f"rediss://:{SECRET}@b?ssl_cert_reqs=none", "redis://c"),
    [f"redis://a:1?password={SECRET}"],
    [f"unix:///run/redis.sock?password={SECRET}"],
    [f"unix://user:{SECRET}@/run/redis.sock"],
    [f"valkey://:pass@{SECRET}@a"],
    f"redis://:{SECRET}@a,redis://:{SECRET}@b,redis://c",
]


def app() -> Celery:
    return Celery("proj", broker="memory://", set_as_current=False)


def by_update(name: str, nodes: Any) -> Celery:
    made = app()
    made.conf.update({name: nodes, "redlock_ttl": 7, "redlock_node_timeout": 8})
    return made


def by_attribute(name: str, nodes: Any) -> Celery:
    made = app()
    setattr(made.conf, name, nodes)
    made.conf.redlock_ttl, made.conf.redlock_node_timeout = 7, 8
    return made


def by_namespace(name: str, nodes: Any) -> Celery:
    made = app()
    names = {name: nodes, "redlock_ttl": 7, "redlock_node_timeout": 8}
    source = types.SimpleNamespace(**{f"CELERY_{name}".upper(): v for name, v in names.items()})
    made.config_from_object(source, namespace="CELERY")
    return made


def shown_by(made: Celery) -> dict[str, str]:
    """Return what each reader of the configuration shows."""
    conf: Any = made.conf
    return {
        "table": repr(conf.table()),
        "table with defaults": repr(conf.table(with_defaults=True)),
        "humanize": conf.humanize(),
        "report": utils.bugreport(made),
        "inspect conf": json.dumps(jsonify(conf.table(), unknown_type_filter=repr)),
    }


@pytest.mark.parametrize("configured", [by_update, by_attribute, by_namespace])
@pytest.mark.parametrize("nodes", FORMS, ids=str)
@pytest.mark.parametrize("name", ["redlock_nodes", "redlock_node", "redlock_nodes_url"])
def test_celery_shows_no_password_of_a_node(
    configured: Callable[[str, Any], Celery], nodes: Any, name: str
) -> None:
    for reader, text in shown_by(configured(name, nodes)).items():
        assert SECRET not in text, reader
        assert name in text.lower(), reader


def test_the_other_settings_are_shown_as_they_were() -> None:
    for reader, text in shown_by(by_update("redlock_nodes", [])).items():
        assert "redlock_ttl" in text, reader
        assert "7" in text, reader
        assert "redlock_node_timeout" in text, reader
        assert "8" in text, reader
    assert by_update("redlock_nodes", []).conf.table()["redlock_node_timeout"] == 8


def test_the_setting_itself_stays_what_it_is() -> None:
    nodes = [f"redis://:{SECRET}@a"]
    made = by_update("redlock_nodes", nodes)
    made.conf.table()
    assert made.conf.redlock_nodes is nodes
    assert settings_from(made.conf).nodes == tuple(nodes)


def test_celery_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "HIDDEN_SETTINGS", re.compile("API|PASS", re.IGNORECASE))
    shown: Any = {"redlock_nodes": [SECRET], "redlock_node_timeout": 8, "api_key": SECRET}
    hide_nodes()
    once = utils.HIDDEN_SETTINGS  # type: ignore[attr-defined]
    assert utils.filter_hidden_settings(shown) == {
        "redlock_nodes": "********",
        "redlock_node_timeout": 8,
        "api_key": "********",
    }
    hide_nodes()
    assert utils.HIDDEN_SETTINGS is once  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "code",
    ["import celery.bin.celery, celery_redlock.cli", "from celery_redlock import singleton_task"],
)
def test_an_app_without_a_singleton_task_is_covered(code: str) -> None:
    # A command loads what is registered for it; the tasks may come later.
    script = f"""
from celery import Celery
app = Celery("proj", broker="memory://")
app.conf.redlock_nodes = ["redis://:{SECRET}@a"]
{code}
print(app.conf.humanize())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "redlock_nodes: '********'" in ended.stdout


def test_the_settings_that_were_read_do_not_show_them() -> None:
    found = settings_from(by_update("redlock_nodes", [f"redis://:{SECRET}@a"]).conf)
    assert SECRET not in repr(found)
    assert SECRET in found.nodes[0]
