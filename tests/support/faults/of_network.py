"""Faults between clients and servers, by the proxies in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .nemesis import Heal, Nemesis, together
from .proxy import Proxy

_LATE_S = 0.15
_LONGEST_PAUSE_S = 0.05


def network_nemeses(views: Sequence[Sequence[Proxy]]) -> list[Nemesis]:
    """Return the faults of the network between clients and lock nodes.

    Args:
        views: For each of two groups of clients: its proxy to each node.
    """
    first, second = views
    size = len(first)
    minority, majority = (size - 1) // 2, size // 2 + 1

    def of_both(count: int, fault: Callable[[Proxy], None]) -> Callable[[random.Random], Heal]:
        def strike(chance: random.Random) -> Heal:
            return _struck([view[at] for at in chance.sample(range(size), count) for view in views],
                           fault)  # fmt: skip

        return strike

    def asymmetric(chance: random.Random) -> Heal:
        """Let the groups reach different nodes; each still has a quorum."""
        order = chance.sample(range(size), size)
        cut = [first[at] for at in order[:minority]] + [second[at] for at in order[-minority:]]
        return _struck(cut, Proxy.black_hole)

    def isolated(chance: random.Random) -> Heal:
        """Let one group lose a majority."""
        view = chance.choice(views)
        return _struck(chance.sample(list(view), majority), Proxy.black_hole)

    def scrambled(chance: random.Random) -> Heal:
        """Cut and join what travels; nothing is lost, and connections stay."""
        proxies = [*first, *second]
        for proxy in proxies:
            # Some are slower than others: they get the next request before they have had the last.
            proxy.scramble(chance, chance.uniform(0.0, _LONGEST_PAUSE_S))
        return together([proxy.heal for proxy in proxies])

    return [
        Nemesis("partition-minority", of_both(minority, Proxy.black_hole)),
        Nemesis("partition-majority", of_both(majority, Proxy.black_hole)),
        Nemesis("partition-asymmetric", asymmetric),
        Nemesis("partition-one-group", isolated),
        Nemesis("requests-lost", of_both(majority, _requests_lost)),
        # The server executes what it is asked, and nobody hears of it.
        Nemesis("replies-lost", of_both(majority, _replies_lost)),
        Nemesis("delay", of_both(size, _late)),
        Nemesis("bytes-cut", scrambled),
        Nemesis("half-open", of_both(minority, Proxy.half_open)),
        Nemesis("half-open-majority", of_both(majority, Proxy.half_open)),
        Nemesis("reset", of_both(size, Proxy.reset)),
        Nemesis("refused", of_both(minority, _refused)),
    ]


def scrambles(views: Sequence[Sequence[Proxy]]) -> dict[str, int]:
    """Return how many times what traveled was cut, and joined."""
    proxies = [proxy for view in views for proxy in view]
    return {
        "requests_cut": sum(proxy.requests.cuts for proxy in proxies),
        "requests_joined": sum(proxy.requests.joins for proxy in proxies),
        "replies_cut": sum(proxy.replies.cuts for proxy in proxies),
        "replies_joined": sum(proxy.replies.joins for proxy in proxies),
    }


def _struck(proxies: Sequence[Proxy], fault: Callable[[Proxy], None]) -> Heal:
    for proxy in proxies:
        fault(proxy)

    def heal() -> None:
        for proxy in proxies:
            proxy.heal()
            # What was lost on its way is lost with its connection, as TCP has it.
            proxy.reset()

    return heal


def _requests_lost(proxy: Proxy) -> None:
    proxy.requests.drops = True


def _replies_lost(proxy: Proxy) -> None:
    proxy.replies.drops = True


def _late(proxy: Proxy) -> None:
    proxy.requests.delay = proxy.replies.delay = _LATE_S


def _refused(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()
