"""Exceptions of this package, in one tree.

Every exception keeps its data as constructor arguments, in order, as plain JSON values: Celery
sends an exception through the result backend as class and ``args``, and this way it arrives whole.
"""

from __future__ import annotations

from collections.abc import Mapping


class RedlockError(Exception):
    """Base class of all exceptions of this package."""


class ConfigurationError(RedlockError):
    """The configuration is wrong; the message names the value, its place and the remedy."""


class LockHeld(RedlockError):
    """Others hold the lock on so many nodes that no majority is left.

    Attributes:
        key: Key of the lock.
        holder: Holder, ``<task id>@<hostname>``; of several, the one with the most nodes. None: no
            node named one.
        remaining: Seconds until that holder's lock would expire if it were not renewed.
        contended: Whether no holder is known to have a majority: attempts that started at the same
            moment keep splitting the nodes between them. Possibly no task runs then.
        held_since: When the holder acquired the lock, seconds since the epoch on the clock of the
            refused process. None: unknown, as with a reservation.
        task_name: Name of the holder's task. None: the lock was used without Celery.
        task_id: Id of the holder's task, or its label. None: no node named a holder.
        hostname: Host of the holder. None: no node named a holder.
        owner: Owner string of the holder, for the refused process only. It is enough to release the
            lock, so `args`, `repr`, pickle and copies leave it out.
        age: Seconds since the holder acquired the lock, by the nodes' clocks, for the refused
            process only. None: unknown, as with a reservation.
    """

    __slots__ = ("age", "owner")  # not in `vars`, which are pickled

    def __init__(  # all but the first are optional
        self,
        key: str,
        holder: str | None = None,
        remaining: float = 0.0,
        contended: bool = False,  # noqa: FBT001, FBT002  # args must rebuild it, in order
        held_since: float | None = None,
        task_name: str | None = None,
        *,
        owner: str | None = None,
        age: float | None = None,
    ) -> None:
        super().__init__(key, holder, remaining, contended, held_since, task_name)
        self.key = key
        self.holder = holder
        self.remaining = remaining
        self.contended = contended
        self.held_since = held_since
        self.task_name = task_name
        self.owner = owner
        self.age = age

    @property
    def task_id(self) -> str | None:
        """Id of the holder's task, or its label."""
        return (self.holder or "").rpartition("@")[0] or None

    @property
    def hostname(self) -> str | None:
        """Host of the holder."""
        return (self.holder or "").rpartition("@")[2] or None

    def name_task(self, name: str) -> None:
        """Note the name of the holder's task."""
        self.task_name = name
        self.args = (*self.args[:-1], name)

    def __str__(self) -> str:
        who = self.holder or "others"
        if self.contended:
            return f"cannot lock {self.key!r}: the nodes are split between attempts, {who} leads"
        return f"cannot lock {self.key!r}: held by {who} for another {self.remaining:.3f} s"


class QuorumUnavailable(RedlockError):
    """Fewer nodes than a quorum could answer.

    Attributes:
        key: Key of the lock.
        errors: Reason of each node, by its address without credentials.
        nodes: Number of all nodes.
        action: Operation that failed: lock, extend or release.
        guarded: Number of nodes that are up, but wait for their restart guard.
    """

    def __init__(
        self,
        key: str,
        errors: Mapping[str, str] | None = None,
        nodes: int = 0,
        action: str = "lock",
        guarded: int = 0,
    ) -> None:
        self.errors = dict(errors or {})
        super().__init__(key, self.errors, nodes, action, guarded)
        self.key = key
        self.nodes = nodes
        self.action = action
        self.guarded = guarded

    def __str__(self) -> str:
        needed = self.nodes // 2 + 1
        voted = self.nodes - len(self.errors)
        why = "; ".join(f"{node}: {error}" for node, error in self.errors.items())
        return (
            f"cannot {self.action} {self.key!r}: {voted + self.guarded} of {self.nodes} nodes "
            f"answered, {f'{voted} may vote yet, ' if self.guarded else ''}"
            f"{needed} {'is' if needed == 1 else 'are'} needed ({why})"
        )


class LeaseLost(RedlockError):
    """A lease ended before its holder released it: another owner may have the lock by now.

    Attributes:
        key: Key of the lock; '' while it is being raised in another thread, which takes a class.
        reason: Reason, as far as known.
    """

    def __init__(self, key: str = "", reason: str = "it could not be renewed in time") -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"the lease on {self.key!r} is lost: {self.reason}"


class DuplicateTask(RedlockError):
    """A task did not run because another execution holds its lock.

    Attributes:
        key: Key of the lock.
        holder: Id of the task that holds the lock. None: unknown.
        remaining: Seconds until its lease would expire if it were not renewed.
        task_name: Name of that task.
        hostname: Host that runs it, or that has published its message if that waits. None: unknown.
        held_since: When it acquired the lock, seconds since the epoch on the clock of the process
            that did not run the task. None: unknown, as with a message that waits.
        task_id: The same as `holder`.
    """

    def __init__(  # args must rebuild it, in order
        self,
        key: str,
        holder: str | None = None,
        remaining: float = 0.0,
        task_name: str | None = None,
        hostname: str | None = None,
        held_since: float | None = None,
    ) -> None:
        super().__init__(key, holder, remaining, task_name, hostname, held_since)
        self.key = key
        self.holder = holder
        self.remaining = remaining
        self.task_name = task_name
        self.hostname = hostname
        self.held_since = held_since

    @property
    def task_id(self) -> str | None:
        """Id of the task that holds the lock."""
        return self.holder

    def __str__(self) -> str:
        return (
            f"not run: task {self.holder or 'unknown'} holds {self.key!r} "
            f"for another {self.remaining:.3f} s"
        )


class AlreadyDone(RedlockError):
    """The task has run to its end before: this is its message, delivered again.

    Attributes:
        key: Key of the lock.
        remaining: Seconds until the done mark expires.
    """

    def __init__(self, key: str, remaining: float = 0.0) -> None:
        super().__init__(key, remaining)
        self.key = key
        self.remaining = remaining

    def __str__(self) -> str:
        return f"not run again: the task has already run under {self.key!r}"
