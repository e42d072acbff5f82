"""Types of the commands' parameters: what a command can't use is an error of its usage."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

import click

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Seconds(click.FloatRange):
    """Number of seconds that a process can wait; infinity and NaN are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            BadParameter: It is not in the range.
        """
        from celery_redlock.redlock.validation import LONGEST_S

        number: float = super().convert(value, param, ctx)
        if not number <= LONGEST_S:  # NaN is not, either
            self.fail(f"{number} is more than {LONGEST_S:.0f} (ten years).")
        return number


class Duration(click.types.FloatParamType):
    """Duration in seconds, or with a unit: 90, 30s, 15m, 2h or 7d."""

    name = "duration"

    def convert(self, value: Any, *_: object) -> float:
        """Return the duration in seconds.

        Raises:
            BadParameter: It is not one.
        """
        found = _DURATION.fullmatch(str(value))
        if not found:
            self.fail(f"{value!r} is not a duration such as 90, 30s, 15m, 2h or 7d.")
        return float(found[1]) * _UNITS_S[found[2]]


class Text(click.types.StringParamType):
    """Text as the nodes have it, in UTF-8: not the bytes of a terminal with another encoding."""

    def convert(self, value: Any, *_: object) -> str:
        """Return the text.

        Raises:
            BadParameter: It can't be encoded.
        """
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} can't be encoded as UTF-8.")
        return text


class NodeUrl(click.types.StringParamType):
    """URL of a node; in an environment variable several, as a string in `redlock_nodes`."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the URLs in an environment variable."""
        from celery_redlock.config.node_urls import urls_in

        return urls_in(rv)


class Address(click.types.StringParamType):
    """IP address."""

    name = "address"

    def convert(self, value: Any, *_: object) -> str:
        """Return the address as connections have it.

        Raises:
            BadParameter: It is not one.
        """
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            self.fail(f"{value!r} is not an IP address such as 127.0.0.1 or ::1.")


class Json(click.types.StringParamType):
    """JSON of a type.

    Args:
        kind: Type of the value that JSON is read as.
    """

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind

    def convert(self, value: Any, *_: object) -> Any:
        """Return the value.

        Raises:
            BadParameter: It is not JSON, or of another type.
        """
        try:
            parsed = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}")
        if not isinstance(parsed, self.kind):
            self.fail(f"{value!r} is not a JSON {self.kind.__name__}")
        return parsed


TEXT = Text()
