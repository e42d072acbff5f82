"""Addresses that the page listens at."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.web.server import listen, url_of

LONG = "a-token-that-nobody-guesses"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_at_loopback_no_token_is_needed(host: str) -> None:
    with listen(host, 0, None) as listener:
        assert url_of(listener).startswith("http://")


@pytest.mark.parametrize("host", ["0.0.0.0", ""])  # noqa: S104
def test_elsewhere_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigurationError, match="give a token with --token"):
        listen(host or "0.0.0.0", 0, None)  # noqa: S104
    with listen(host or "0.0.0.0", 0, LONG):  # noqa: S104
        pass


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        listen("127.0.0.1", 0, token)


def test_a_port_in_use_is_an_error_of_ours() -> None:
    with listen("127.0.0.1", 0, None) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"can't listen at 127.0.0.1:{port}"):
            listen("127.0.0.1", port, None)
