"""A node whose TLS is not in order is refused: no lock is had from it, and the reason is shown."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celery_redlock.redlock import QuorumUnavailable
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.judges.nodes import holders_on
from tests.support.processes.certificates import Authority, TlsServers, tls_servers

PASSWORD = "s3same/of the#key"  # noqa: S105
NODES = 3


@dataclass(frozen=True, slots=True)
class Case:
    """What is not in order.

    Attributes:
        server: The servers' certificate.
        says: What errors say of it.
        options: The client's.
        client: The client's certificate, if any; then the servers ask for one.
        is_plain: Whether the client speaks plain text.
        port: Where it connects to: "tls" or "plain".
    """

    server: str
    says: str
    options: Mapping[str, object] = field(default_factory=dict)
    client: str = ""
    is_plain: bool = False
    port: str = "tls"


TRUSTING = {"ssl_ca_certs": "authority"}
# A server that refuses a certificate may close the connection before it has said why.
CLOSED = "alert|EOF|reset|closed"
REFUSED = {
    "unknown authority": Case("good", "certificate verify failed"),
    "another authority": Case("good", "certificate verify failed", {"ssl_ca_certs": "stranger"}),
    "wrong host name": Case("elsewhere", "Hostname mismatch|doesn't match", TRUSTING),
    "expired": Case("expired", "certificate has expired", TRUSTING),
    "plain text on a TLS port": Case("good", CLOSED, is_plain=True),
    "TLS on a plain port": Case("good", "Timeout|timed out|SSL|EOF", TRUSTING, port="plain"),
    "no client certificate": Case("good", CLOSED, TRUSTING, client="none"),
    "client of another authority": Case("good", CLOSED, TRUSTING, client="stranger"),
    "wrong password of the client's key": Case("good", "SSL|password", TRUSTING, client="locked"),
}


class Tls:
    """Authorities, certificates, and servers that show them, each started once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        for name in ("own", "foreign"):
            (folder / name).mkdir()
        self._stack = stack
        self.own, self.foreign = Authority(folder / "own"), Authority(folder / "foreign")
        self.certificates = {
            "good": self.own.sign("good"),
            "elsewhere": self.own.sign("elsewhere", hosts="DNS:elsewhere.example"),
            "expired": self.own.sign("expired", days=-1),
            "locked": self.own.sign("locked", password=PASSWORD),
            "stranger": self.foreign.sign("stranger"),
        }
        self._started: dict[tuple[str, bool], TlsServers] = {}

    def servers(self, certificate: str, *, asks: bool) -> TlsServers:
        """Return servers that show a certificate, and maybe ask clients for theirs."""
        if (certificate, asks) not in self._started:
            asking = ("--tls-auth-clients", "yes") if asks else ()
            started = tls_servers(self.own, self.certificates[certificate], NODES, *asking)
            self._started[certificate, asks] = self._stack.enter_context(started)
        return self._started[certificate, asks]

    def urls(self, case: Case) -> list[str]:
        """Return the addresses of a case's servers, as its client writes them."""
        servers = self.servers(case.server, asks=bool(case.client))
        if case.is_plain:
            return [f"redis://localhost:{port}" for port in servers.ports]
        if case.port == "plain":
            ports = [server.port for server in servers.servers]
            servers = TlsServers(servers.servers, ports)
        authorities = {"authority": self.own, "stranger": self.foreign}
        options: dict[str, object] = {
            name: authorities[str(whose)].certificate for name, whose in case.options.items()
        }
        return servers.urls(options | self.client(case.client, "wrong"))

    def client(self, name: str, password: str) -> dict[str, object]:
        """Return the options of a client with this certificate."""
        if name in ("", "none"):
            return {}
        files = self.certificates[name]
        secret = {"ssl_password": password} if name == "locked" else {}
        return {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, **secret}


@pytest.fixture(scope="module")
def tls(_has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    with ExitStack() as stack:
        yield Tls(tmp_path_factory.mktemp("tls"), stack)


@pytest.fixture(scope="module")
def refused(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Connections that were refused, by what was not in order; recorded unless a test fails."""
    counts: Counter[str] = Counter()
    failed = request.session.testsfailed
    yield counts
    if request.session.testsfailed == failed and counts.keys() == REFUSED.keys():
        record("tls--refused", refused=counts, violations=0)


def says_each(reasons: Collection[str], pattern: str) -> bool:
    return len(reasons) == NODES and all(re.search(pattern, reason) for reason in reasons)


@pytest.mark.parametrize("what", REFUSED)
def test_a_node_whose_tls_is_not_in_order_is_refused(
    new_redlock: NewRedlock,
    tls: Tls,
    caplog: pytest.LogCaptureFixture,
    refused: Counter[str],
    what: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    case = REFUSED[what]
    redlock = new_redlock(tls.urls(case), node_timeout=0.5)
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.acquire("k")
    assert len(caught.value.errors) == NODES
    eventually(lambda: says_each(redlock.check().values(), case.says), f"they say {case.says}")
    servers = tls.servers(case.server, asks=bool(case.client)).servers
    assert holders_on(servers, "k") == [None] * NODES
    assert PASSWORD not in caplog.text
    refused[what] += NODES


def test_a_client_with_a_certificate_is_accepted(new_redlock: NewRedlock, tls: Tls) -> None:
    servers = tls.servers("good", asks=True)
    mine = tls.client("locked", PASSWORD)
    redlock = new_redlock(servers.urls({"ssl_ca_certs": tls.own.certificate} | mine))
    with redlock.lock("k") as lease:
        lease.ensure()
    assert redlock.check() == {}


def test_a_host_name_is_not_checked_if_the_url_says_so(new_redlock: NewRedlock, tls: Tls) -> None:
    urls = tls.servers("elsewhere", asks=False).urls(
        {"ssl_ca_certs": tls.own.certificate, "ssl_check_hostname": "false"}
    )
    with new_redlock(urls).lock("k") as lease:
        lease.ensure()
