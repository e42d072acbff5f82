"""Faults of what Celery stands on: brokers and result backends that are cut off and restarted."""

from __future__ import annotations

import random
import time

from tests.support.processes.brokers import RedisBroker, Service

from .nemesis import Heal, Nemesis
from .proxy import Proxy

_IN_FLIGHT_S = 0.3
"""Longer than a reply of a server takes that is given no more to do."""


def service_nemeses(what: str, service: Service, proxy: Proxy) -> list[Nemesis]:
    """Return the faults of a broker or a result backend behind a proxy.

    Args:
        what: "broker", or what else it is.
        service: The server.
        proxy: Before it.
    """

    def hold(_: random.Random) -> Heal:
        proxy.half_open()
        return proxy.heal

    def cut(_: random.Random) -> Heal:
        _let_replies_arrive(service, proxy)
        proxy.refuse()
        proxy.reset()
        return proxy.heal

    def restart(_: random.Random) -> Heal:
        _let_replies_arrive(service, proxy)
        service.restart()
        proxy.reset()
        proxy.requests.holds = False
        return lambda: None

    return [
        Nemesis(f"{what}-silent", hold),
        Nemesis(f"{what}-cut", cut),
        Nemesis(f"{what}-restarted", restart),
    ]


def _let_replies_arrive(service: Service, proxy: Proxy) -> None:
    """Hold requests until all replies are read: what a Redis broker gave away is lost otherwise."""
    if isinstance(service, RedisBroker):
        proxy.requests.holds = True
        time.sleep(_IN_FLIGHT_S)
