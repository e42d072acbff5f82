"""The files on the page about installing are valid, and fit together."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.redlock.defaults import MAX_CLOCK_SKEW_S, MAX_TTL_S
from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.testing import Server
from tests.support.eventually import eventually
from tests.support.faults.clock_shim import WallClock
from tests.support.requirements import linux_only, unmet
from tests.support.root import ROOT
from tools.docs.markdown import blocks

PAGE = ROOT / "docs" / "how-to" / "install.md"
FILES = {block.title: block.code for block in blocks(PAGE) if block.title}
UNITS = [name for name in FILES if name.endswith(".service")]
MANIFESTS = ["lock-nodes.yaml", "bank-worker.yaml"]
KUBERNETES = "1.34"
CLI = """
import socket
with socket.create_connection(("127.0.0.1", {port})) as server:
    server.sendall(b"INFO server\\r\\n")
    print(server.recv(65536).decode())
"""


def resources_in(name: str) -> list[Any]:
    """Return the resources of a manifest."""
    yaml = pytest.importorskip("yaml", reason="it comes with the extra dev")
    return [*yaml.safe_load_all(FILES[name])]


def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="it comes with the extra dev")
    file = tmp_path / "compose.yaml"
    file.write_text(FILES["compose.yaml"])
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_the_worker_of_the_compose_file_names_each_node_in_it() -> None:
    text = FILES["compose.yaml"]
    services = re.findall(r"^  ([\w-]+):$", text.partition("\nvolumes:")[0], re.MULTILINE)
    assert set(services) == {*re.findall(r"redis://([\w-]+)", text), "worker"}
    assert len([name for name in services if name.startswith("lock-")]) == 3
    assert set(re.findall(r'environ\["(\w+)"\]', FILES["bank.py"])) == {"BROKER", "REDLOCK_NODES"}


@pytest.mark.parametrize("name", UNITS)
def test_a_systemd_unit_is_valid(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        unmet("there is no systemd-analyze", "systemd")
    # The programs that it starts need not be installed here.
    unit = tmp_path / name
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", FILES[name]))
    found = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in found.stderr.splitlines() if name in line]
    assert complaints == []
    assert "Install" in FILES[name]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_for_kubernetes_is_valid(name: str) -> None:
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="it comes with the extra dev"
    )
    for resource in resources_in(name):
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_the_manifests_for_kubernetes_fit_together() -> None:
    secret, service, budget, nodes = resources_in("lock-nodes.yaml")
    [worker] = resources_in("bank-worker.yaml")
    name, pods = nodes["metadata"]["name"], nodes["spec"]["template"]
    hosts = [f"{name}-{number}.{service['metadata']['name']}" for number in range(3)]
    urls = secret["stringData"]["urls"].split()
    assert nodes["spec"]["replicas"] == 3
    assert urls == [f"redis://:{secret['stringData']['password']}@{host}" for host in hosts]
    assert nodes["spec"]["serviceName"] == service["metadata"]["name"]
    [rule] = pods["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    labels = pods["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    for selector in (nodes["spec"]["selector"], budget["spec"]["selector"], rule["labelSelector"]):
        assert selector == {"matchLabels": labels}
    variables = worker["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {one["name"] for one in variables} == {"BROKER", "REDLOCK_NODES"}
    assert variables[1]["valueFrom"]["secretKeyRef"] == {"name": "lock-node", "key": "urls"}
    assert set(secret["stringData"]) == {"password", "urls"}
    server, exporter = pods["spec"]["containers"]
    passwords = [one["env"][0]["valueFrom"] for one in (server, exporter)]
    assert passwords == [{"secretKeyRef": {"name": "lock-node", "key": "password"}}] * 2


@linux_only("has the shim for a server's clock")
def test_a_pod_is_ready_when_its_node_votes(
    new_wall_clock: Callable[[], WallClock], tmp_path: Path
) -> None:
    probe = resources_in("lock-nodes.yaml")[-1]["spec"]["template"]["spec"]["containers"][0][
        "readinessProbe"
    ]["exec"]["command"]
    cli = tmp_path / "valkey-cli"
    clock = new_wall_clock()
    with Server(env=clock.env) as server:
        cli.write_text(f"#!{sys.executable}\n{CLI.format(port=server.port)}")
        cli.chmod(0o755)

        def is_ready() -> bool:
            path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
            return subprocess.run(probe, env={"PATH": path}, check=False).returncode == 0

        assert not is_ready()
        clock.step(math.ceil(guard_s(MAX_TTL_S, MAX_CLOCK_SKEW_S)) + 1)
        eventually(is_ready)
    assert not is_ready()


def test_the_nodes_of_each_way_never_evict() -> None:
    for name in ("compose.yaml", "redlock-node.conf", "lock-nodes.yaml"):
        assert "maxmemory-policy noeviction" in FILES[name]
