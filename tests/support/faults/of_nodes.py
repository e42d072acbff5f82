"""Faults of lock nodes: stopped, killed, restarted, full, replicas, with another clock."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import redis

from celery_redlock.testing import Server, Servers
from tests.support.eventually import eventually

from .clock_shim import WallClock
from .nemesis import Heal, Nemesis, together

PERSISTENCE = {
    "none": (),
    "appendfsync-always": ("--appendonly", "yes", "--appendfsync", "always"),
    "appendfsync-everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "rdb": ("--save", "1 1"),
}
"""Arguments of a server for each mode of persistence."""
FLUSHED = "nodes are not flushed"
STEPPED = "no wall clock of a lease's quorum is stepped"
_PAUSE_MS = 1500
_ADMIN, _PASSWORD = "chaos-admin", "chaos"


def new_node(mode: str = "none", env: Mapping[str, str] | None = None) -> Server:
    """Return a lock node, not started yet, that these faults can strike."""
    # An administrator has all rights, whatever is done to others.
    admin = ("--user", _ADMIN, "on", f">{_PASSWORD}", "~*", "&*", "+@all")
    return Server(*PERSISTENCE[mode], *admin, env=env)


class Victims:
    """Lock nodes of which each has one fault at a time.

    Args:
        nodes: Which.
        modes: The mode of persistence of each.
    """

    def __init__(self, nodes: Sequence[Server], modes: Sequence[str]) -> None:
        self.nodes = Servers(nodes)
        self.modes = dict(zip(self.nodes, modes, strict=True))
        self._struck: set[Server] = set()

    def strike(
        self, count: int, fault: Callable[[Server], Heal], mode: str | None = None
    ) -> Callable[[random.Random], Heal]:
        """Return a fault of so many nodes, as a nemesis strikes it."""

        def strike(chance: random.Random) -> Heal:
            free = [node for node in self.nodes if node not in self._struck]
            able = [node for node in free if mode in (None, self.modes[node])]
            chosen = chance.sample(able, min(count, len(able)))
            self._struck.update(chosen)
            heals = [fault(node) for node in chosen]

            def heal() -> None:
                together(heals)()
                self._struck.difference_update(chosen)

            return heal

        return strike


def node_nemeses(victims: Victims) -> list[Nemesis]:
    """Return the faults of nodes that lie inside of the fault model."""
    count = len(victims.nodes)
    minority, on = (count - 1) // 2, victims.strike
    nemeses = [
        Nemesis("node-stopped", on(1, _stopped)),
        Nemesis("minority-stopped", on(minority, _stopped)),
        Nemesis("majority-stopped", on(minority + 1, _stopped)),
        Nemesis("minority-killed", on(minority, _killed)),
        Nemesis("all-restarted", on(count, _restarted)),
        Nemesis("client-pause", on(1, _client_pause)),
        Nemesis("maxmemory", on(minority, _full)),
        Nemesis("misconf", on(1, _misconf)),
        Nemesis("script-flush", on(count, _script_flush)),
        Nemesis("acl-revoked", on(minority, _without_rights)),
    ]
    modes = dict.fromkeys(victims.modes.values())
    return nemeses + [Nemesis(f"killed-{mode}", on(1, _killed, mode)) for mode in modes]


class Replicas:
    """Lock nodes that are replicas for a while, and forget their locks.

    Args:
        master: Server without locks.
        seconds: For how long a node is a replica at least. A process that asks it nothing
            meanwhile does not notice, so it must be as long as the restart guard.

    Attributes:
        refused: How many writes they have refused.
    """

    def __init__(self, master: Server, seconds: float) -> None:
        self.refused = 0
        self._master = master
        self._seconds = seconds

    def nemesis(self, victims: Victims) -> Nemesis:
        """Return the fault of one node."""
        return Nemesis("node-replica", victims.strike(1, self._follow), seconds=self._seconds)

    def _follow(self, node: Server) -> Heal:
        with _tell(node) as client:
            before = _refusals(client)
            client.replicaof("127.0.0.1", self._master.port)

        def heal() -> None:
            with _tell(node) as client:
                eventually(lambda: client.info("replication")["master_link_status"] == "up")
                self.refused += _refusals(client) - before
                client.execute_command("REPLICAOF", "NO", "ONE")

        return heal


def forgetful_nemeses(victims: Victims, clocks: Sequence[WallClock] = ()) -> list[Nemesis]:
    """Return the faults in which nodes lose locks without a restart: outside of the fault model.

    Args:
        victims: Lock nodes.
        clocks: Wall clocks of a majority of them.
    """
    majority = len(victims.nodes) // 2 + 1
    nemeses = [
        Nemesis("flushall-one", victims.strike(1, _flush), FLUSHED),
        Nemesis("flushall-majority", victims.strike(majority, _flush), FLUSHED),
    ]
    if clocks:
        nemeses += [
            Nemesis("clock-of-one-ahead", _step(clocks[:1], 10.0), STEPPED),
            Nemesis("clocks-of-majority-ahead", _step(clocks, 10.0), STEPPED),
        ]
    return nemeses


def _stopped(node: Server) -> Heal:
    node.pause()
    return node.resume


def _killed(node: Server) -> Heal:
    node.kill()
    return node.start


def _restarted(node: Server) -> Heal:
    node.kill()
    node.start()
    return lambda: None


def _client_pause(node: Server) -> Heal:
    with _tell(node) as client:
        client.execute_command("CLIENT", "PAUSE", _PAUSE_MS, "ALL")

    def heal() -> None:
        # Not UNPAUSE, which waits for the end of the pause like any other command.
        with _tell(node) as client:
            client.ping()

    return heal


def _full(node: Server) -> Heal:
    return _config(node, "maxmemory", "1", "0")


def _misconf(node: Server) -> Heal:
    """Have the node fail to save, after which it refuses all writes."""
    dump = node.folder / "dump.rdb"
    dump.unlink(missing_ok=True)
    dump.mkdir()  # no file can take its place
    (dump / "in-the-way").touch()
    with _tell(node) as client:
        before = client.config_get("save")["save"]
        client.config_set("save", "3600 1")
        with suppress(redis.ResponseError):  # one is under way, and fails as well
            client.bgsave()

    def heal() -> None:
        shutil.rmtree(dump, ignore_errors=True)
        with _tell(node) as client:
            client.config_set("save", before)
            with suppress(redis.ResponseError):
                client.bgsave()

    return heal


def _script_flush(node: Server) -> Heal:
    with _tell(node) as client:
        client.script_flush()
    return lambda: None


def _without_rights(node: Server) -> Heal:
    with _tell(node) as client:
        client.execute_command("ACL", "SETUSER", "default", "-@all", "+info", "+role")

    def heal() -> None:
        with _tell(node) as client:
            client.execute_command("ACL", "SETUSER", "default", "+@all")

    return heal


def _flush(node: Server) -> Heal:
    with _tell(node) as client:
        client.flushall()
    return lambda: None


def _step(clocks: Sequence[WallClock], seconds: float) -> Callable[[random.Random], Heal]:
    def strike(_: random.Random) -> Heal:
        for clock in clocks:
            clock.step(seconds)
        return together([partial(clock.step, -seconds) for clock in clocks])

    return strike


def _config(node: Server, name: str, value: str, healed: str) -> Heal:
    with _tell(node) as client:
        client.config_set(name, value)

    def heal() -> None:
        with _tell(node) as client:
            client.config_set(name, healed)

    return heal


def _refusals(client: redis.Redis) -> int:
    errors = client.info("errorstats").get("errorstat_READONLY", {"count": 0})
    return int(errors["count"])


def _tell(node: Server) -> redis.Redis:
    return node.client(username=_ADMIN, password=_PASSWORD)
