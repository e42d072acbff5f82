"""The traps that the doctor knows: code, title, why they matter, and the remedy.

The reference page is made from this file: `python -m tools.docs.doctor_page`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum

PAGE = "docs/reference/doctor.md"
_COMMAND = "celery -A proj redlock"
"""Start of the commands in the remedies."""


class Severity(str, Enum):
    """Severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """Its place in a list: the worst is first."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Trap:
    """A known trap.

    Attributes:
        code: Stable code.
        title: The trap, in a few words.
        why: What happens in it.
        fix: Remedy.
    """

    code: str
    title: str
    why: str
    fix: str

    @property
    def anchor(self) -> str:
        """Place in the documentation."""
        return f"{PAGE}#{self.code.lower()}"

    def remedy(self, command: str) -> str:
        """Return the remedy, with lines for a shell; each begins with `command`."""
        return self.fix.replace(_COMMAND, command)

    def at(
        self, where: str, what: str, severity: Severity = Severity.WARNING, key: str = ""
    ) -> Finding:
        """Return the finding that it was found at a place, by what was seen."""
        return Finding(self, severity, where, what, key)


@dataclass(frozen=True, slots=True)
class Finding:
    """A trap that was found.

    Attributes:
        trap: The trap.
        severity: Its severity here.
        where: Node, setting or task.
        what: What was seen.
        key: Key of the lock that the remedy releases; '': it releases none.
    """

    trap: Trap
    severity: Severity
    where: str
    what: str
    key: str = ""

    def fix(self, command: str = _COMMAND) -> str:
        """Return the remedy, with lines for a shell; each begins with `command`."""
        text = self.trap.remedy(command)
        return text.replace(" KEY`", f" {shlex.quote(self.key)}`") if self.key else text

    def as_json(self, command: str = _COMMAND) -> dict[str, str]:
        """Return the finding as plain JSON values; `command` is that of `fix`."""
        return {
            "code": self.trap.code,
            "severity": self.severity.value,
            "title": self.trap.title,
            "where": self.where,
            "what": self.what,
            "why": self.trap.why,
            "fix": self.fix(command),
            "docs": self.trap.anchor,
        }


NO_QUORUM = Trap(
    "RL101", "no quorum votes",
    "No lock can be acquired: tasks wait, fail or run without a lock, as lock_on_unavailable says.",
    "Mend the nodes that don't vote. After a restart of all nodes, wait for the restart guard.",
)  # fmt: skip
DOWN = Trap(
    "RL102", "a node can't be used",
    "The quorum has less to spare: with one more failure no lock may be acquired.",
    "Start the node, or mend the network or the user in its URL.",
)  # fmt: skip
GUARDED = Trap(
    "RL103", "a node is in its restart guard",
    "It may have forgotten locks when it restarted, so it does not vote yet.",
    "Wait. Restart one node at a time, with more than the guard in between. Only nodes that are "
    "new, and never held a lock, vote at once after `celery -A proj redlock admit --yes`.",
)  # fmt: skip
EVICTION = Trap(
    "RL104", "a node may evict keys",
    "A node that evicts a lock key gives the same lock away twice.",
    "Set maxmemory-policy noeviction, and keep other data off the node.",
)  # fmt: skip
REPLICA = Trap(
    "RL105", "a node is a replica",
    "A lock that a replica grants is lost in a failover, so it does not vote. No worker starts "
    "meanwhile; those that run go on with the other nodes.",
    "Name independent masters only.",
)  # fmt: skip
REPLICATED = Trap(
    "RL106", "a node has replicas, or was one",
    "Replication is asynchronous: a promoted replica has forgotten the newest locks, and answers "
    "under the same address.",
    "Use servers without replication and failover. A minority may fail: they need none.",
)  # fmt: skip
CLUSTER = Trap(
    "RL107", "a node is in cluster mode",
    "It refuses the keys of the slots that it does not serve, and its shard may fail over.",
    "Name independent masters outside a cluster.",
)  # fmt: skip
TWINS = Trap(
    "RL108", "one server has two URLs",
    "It would vote twice, so neither name counts. No worker starts meanwhile.",
    "Name each server once.",
)  # fmt: skip
EVEN = Trap(
    "RL109", "the number of nodes is even",
    "It tolerates no more failures than one node less, and is refused.",
    "Name 1, 3 or 5 nodes.",
)  # fmt: skip
SINGLE = Trap(
    "RL110", "there is only one node",
    "While it is down no task gets its lock, and when it restarts it forgets the locks that it did "
    "not store.",
    "Name 3 nodes in redlock_nodes. For one node, set appendonly yes and appendfsync always.",
)  # fmt: skip
CLOCK = Trap(
    "RL111", "a node's clock is wrong",
    "Tokens keep their order only while clocks are right to redlock_max_clock_skew; and when NTP "
    "steps the clock, locks on the node end early.",
    "Run NTP on the node and on this machine, so that it slews and does not step.",
)  # fmt: skip
FORGETS = Trap(
    "RL112", "a node forgets locks in a restart, and is not guarded",
    "With redlock_restart_guard off, a node that restarts votes at once, without the locks that it "
    "held. A second holder may get a majority.",
    "Remove redlock_restart_guard = False, or set appendonly yes and appendfsync always.",
)  # fmt: skip
SLOW = Trap(
    "RL113", "the round trip is too long for redlock_node_timeout",
    "A node that answers later than redlock_node_timeout counts as failed: if a majority does, "
    "each attempt ends with no quorum, though all nodes are up.",
    "Set redlock_node_timeout to four times the round trip, or move the nodes nearer to the "
    "workers.",
)  # fmt: skip
CLIENTS = Trap(
    "RL114", "a node is near its limit of connections",
    "Beyond maxclients it refuses connections. Each process holds one, and one for each thread "
    "that locks at the same time.",
    "Raise maxclients, and the server's limit of open files.",
)  # fmt: skip
MEMORY = Trap(
    "RL115", "a node is nearly full",
    "With noeviction a full node refuses to write, and does not vote.",
    "Raise maxmemory, or keep other data off the node.",
)  # fmt: skip
NARROW = Trap(
    "RL116", "the user's rights on a node are too narrow",
    "A command that the lock needs is refused: the node does not vote, or leaves locks behind. "
    "Reported as a warning, only wakeups are refused: waiting callers learn of a release later.",
    "Grant the rights of docs/how-to/run-the-nodes.md, with your redlock_key_prefix.",
)  # fmt: skip
WIDE = Trap(
    "RL117", "the user's rights on a node are too wide",
    "A client that reaches the node, or knows this URL, may read, change and delete all its data.",
    "Give the node a user for the lock alone, as docs/how-to/run-the-nodes.md shows.",
)  # fmt: skip
REFUSES = Trap(
    "RL118", "a node refuses to write",
    "It answers, but does not vote.",
    "Mend what it says: memory, disk, or min-replicas-to-write.",
)  # fmt: skip
PLAIN = Trap(
    "RL119", "a connection to another machine is not encrypted",
    "Passwords and owners can be read on the way; an owner is enough to release its lock.",
    "Use rediss:// URLs, or a network that encrypts.",
)  # fmt: skip
FLEET = Trap(
    "RL120", "a node has no room for the fleet's connections",
    "Beyond maxclients it refuses connections, and processes that are refused see the node as "
    "down: docs/how-to/run-the-nodes.md does the sum.",
    "Raise maxclients, and the server's limit of open files, or lower redlock_idle_timeout.",
)  # fmt: skip
DISABLED = Trap(
    "RL201", "locking is switched off",
    "With redlock_enabled = False all tasks run without a lock.",
    "Remove the setting, except in unit tests.",
)  # fmt: skip
OPTIONS = Trap(
    "RL202", "a task's options contradict each other",
    "The task fails, or is ended under its lock.",
    "Change the options that are named.",
)  # fmt: skip
KEYS = Trap(
    "RL203", "a lock key contains an argument that differs in every call",
    "No two calls have the same key, so the lock excludes nothing.",
    "Choose with lock_key the arguments that identify the work.",
)  # fmt: skip
VISIBILITY = Trap(
    "RL204", "visibility_timeout is shorter than a task or a countdown",
    "The broker delivers the message again while the first copy waits or runs. The lock parks the "
    "copy, but each copy takes up a worker and a delivery of redlock_max_deliveries.",
    "Set broker_transport_options visibility_timeout above the longest time limit and countdown.",
)  # fmt: skip
WORKER_LOST = Trap(
    "RL205", "acks_late without reject_on_worker_lost",
    "If the process of the task is killed, Celery acknowledges the message: the task is not run "
    "again, though it is acknowledged late.",
    "Set task_reject_on_worker_lost = True, or task_acks_late = False if that is meant.",
)  # fmt: skip
QUORUM_QUEUE = Trap(
    "RL206", "a setting does not fit a quorum queue",
    "Workers can't consume a quorum queue with a global prefetch, and countdowns need a topic "
    "exchange.",
    'Keep worker_detect_quorum_queues = True, and set task_default_exchange_type = "topic".',
)  # fmt: skip
TTL = Trap(
    "RL207", "a task's lock_ttl is too short for its nodes",
    "The lease must outlast the round that acquires it, and each renewal takes a round: if a few "
    "are late, the lease is lost and the task interrupted.",
    "Raise lock_ttl to a second or more, and to at least ten round trips.",
)  # fmt: skip
TENANTS = Trap(
    "RL208", "tenants share the keys of their tasks",
    "A call of one tenant counts as a duplicate of another tenant's with the same arguments: the "
    "schema is not an argument.",
    "Set redlock_key to a function that returns the schema's name and the arguments, and name the "
    "schema in each lock_key.",
)  # fmt: skip
BROADCAST = Trap(
    "RL209", "a singleton task is sent to more than one queue",
    "Each receiver's copy of a broadcast message is a call of its own: they run one at a time, or "
    "end by the task's lock_on_conflict. At Redis a copy has no queue to go back to: it waits for "
    "its lock in the worker, for lock_ttl at most.",
    "Send the task to a queue that its workers share, or broadcast a task without a lock.",
)  # fmt: skip
ELSEWHERE = Trap(
    "RL210", "a worker locks on other nodes, or under another key prefix",
    "Its tasks and those of other processes do not exclude each other: the same call may run "
    "twice at a time.",
    "Give every process the same redlock_nodes and redlock_key_prefix. To change them, stop all "
    "processes first: docs/how-to/operate.md.",
)  # fmt: skip
BEAT = Trap(
    "RL301", "beat runs without the scheduler of this package",
    "A second beat publishes every tick twice, and while the only one is down nothing is "
    "published.",
    'Set beat_scheduler = "redlock", and run beat on two hosts or more.',
)  # fmt: skip
MISSED = Trap(
    "RL302", "beat has missed ticks in the last day",
    "When they could be published they were later than their grace time: there was no beat, no "
    "broker or no quorum for so long. Those tasks did not run.",
    "Run by hand what must not be left out. If a restart takes longer than the grace time of the "
    "entry, give it a longer one: docs/how-to/run-beat.md#late-ticks. The note lasts for a day; "
    "`celery -A proj redlock release KEY` removes it.",
)  # fmt: skip
BEAT_SETTINGS = Trap(
    "RL303", "beat refuses a setting",
    'Beat with the scheduler "redlock" does not start: nothing is published.',
    "Change the setting that is named.",
)  # fmt: skip

TRAPS = tuple(one for one in list(vars().values()) if isinstance(one, Trap))
"""Every trap, by its code."""
