"""Exceptions of this package, in one tree.

Every exception keeps its data as constructor arguments, in order, as plain JSON values: Celery
sends an exception through the result backend as class and ``args``, and this way it arrives whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

_SHOWN = 200
"""Characters of a key or a holder that a message or a log line repeats."""
_REASON = 500
"""Characters of a node's reason."""
_REASONS = 5000
"""Characters of a reason that may hold those of all nodes."""


def shown(text: object, most: int = _SHOWN) -> str:
    """Return a text as a message or a log line repeats it: its beginning, and how long it is.

    On one line: what is not printable is escaped, as `visible` does.
    """
    whole = str(text)
    if len(whole) <= most:
        return visible(whole)
    return f"{visible(whole[:most])}… ({len(whole)} characters)"


def visible(text: str) -> str:
    r"""Return a text with ``\x1b`` and the like for each character that is not printable.

    Terminals act on such characters, and a line break makes two lines of one. Who may publish
    messages chooses the ids of tasks and the names of hosts.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _since(held_since: float | None) -> str:
    """Return since when a lock is held, as part of a sentence; '': unknown."""
    if held_since is None:
        return ""
    return f" since {datetime.fromtimestamp(held_since, timezone.utc):%Y-%m-%d %H:%M:%S %Z}"


def _expiry(remaining: float, held_since: float | None) -> str:
    """Return when a lock expires, as the end of a sentence; '': unknown.

    Whether a lease is renewed is not known. Of a reservation, which never is, `held_since` is None.
    """
    if not remaining:
        return ""
    if held_since is None:
        return f", set to expire in {remaining:.3f} s"
    return f"; it expires in {remaining:.3f} s unless its holder renews it"


class RedlockError(Exception):
    """Base class of all exceptions of this package."""

    def __repr__(self) -> str:
        """Return class and message, as Celery shows an error in a ChordError and in its log."""
        return f"{type(self).__name__}({str(self)!r})"


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
        key, who = shown(self.key), shown(self.holder or "others")
        if self.contended:
            return f"cannot lock {key!r}: the nodes are split between attempts, {who} leads"
        since = self.held_since
        return f"cannot lock {key!r}: held by {who}{_since(since)}{_expiry(self.remaining, since)}"


class QuorumUnavailable(RedlockError):
    """Fewer nodes than a quorum could answer.

    Attributes:
        key: Key of the lock.
        errors: Reason of each node, by its address without credentials.
        nodes: Number of all nodes.
        action: Operation that failed: lock, extend or release.
        guarded: Number of nodes that are up, but wait for their restart guard.
        refused: Number of nodes that answered what was asked, but not as needed.
        unheard: Number of nodes that were not waited for, since the others had decided.
    """

    def __init__(
        self,
        key: str,
        errors: Mapping[str, str] | None = None,
        nodes: int = 0,
        action: str = "lock",
        guarded: int = 0,
        refused: int = 0,
        unheard: int = 0,
    ) -> None:
        self.errors = dict(errors or {})
        # Left out where they can be: earlier versions that read it know five arguments.
        more = (refused, unheard) if unheard else (refused,) if refused else ()
        super().__init__(key, self.errors, nodes, action, guarded, *more)
        self.key = key
        self.nodes = nodes
        self.action = action
        self.guarded = guarded
        self.refused = refused
        self.unheard = unheard

    @property
    def answered(self) -> int:
        """Number of nodes that answered, be it not as needed, or wait for their restart guard."""
        return self.nodes - len(self.errors) - self.unheard + self.guarded + self.refused

    def __str__(self) -> str:
        needed, unheard = self.nodes // 2 + 1, self.unheard
        voted = self.answered - self.guarded - self.refused
        why = "; ".join(f"{node}: {shown(error, _REASON)}" for node, error in self.errors.items())
        return (
            f"cannot {self.action} '{shown(self.key)}': {self.answered} of {self.nodes} nodes "
            f"answered, {f'{voted + unheard} may vote yet, ' if self.guarded else ''}"
            f"{f'{voted} of them as needed, ' if self.refused else ''}"
            f"{f'{unheard} not waited for, ' if unheard else ''}"
            f"{needed} {'is' if needed == 1 else 'are'} needed ({why})"
        )


NOT_RENEWED = "it could not be renewed in time"
"""Reason of most losses."""
NEVER_RENEWED = "its ttl was over, and nothing renewed it"
HELD_TOO_LONG = "it was held for as long as it may be"
TAKEN_AWAY = "others have been granted it, or have released it"


class LeaseLost(RedlockError):
    """A lease ended before its holder released it: another owner may have the lock by now.

    Attributes:
        key: Key of the lock; '' while it is being raised in another thread, which takes a class.
        reason: Reason, as far as known.
    """

    def __init__(self, key: str = "", reason: str = NOT_RENEWED) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"the lease on '{shown(self.key)}' is lost: {shown(self.reason, _REASONS)}"


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
        since, verb = self.held_since, "holds" if self.held_since is None else "has held"
        return (
            f"not run: task {shown(self.holder or 'unknown')} {verb} '{shown(self.key)}'"
            f"{_since(since)}{_expiry(self.remaining, since)}"
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
        return f"not run again: the task has already run under '{shown(self.key)}'"
