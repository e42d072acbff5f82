"""Watch of a worker's main process over its nodes: which of them vote."""

from __future__ import annotations

import logging
import threading

from celery import Celery
from celery.utils.dispatch import Signal

from celery_redlock import signals
from celery_redlock.redlock.events import log_event_of_leases
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.refusals import refuse_misconfigured
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import callbacks
from celery_redlock.redlock.threads.dispatch import run_as_own

logger = logging.getLogger(__name__)
_INTERVAL_S = 10.0


class NodeWatch:
    """Watch that reports nodes which stop voting, or vote again, whether tasks run or not.

    It sends the signals `node_down`, `node_up`, `quorum_degraded` and `nodes_checked`, and writes
    log lines.

    Args:
        app: Sender of the signals.
        redlock: Lock whose nodes are watched.
        is_known: Whether the log says already that no quorum votes.
    """

    def __init__(self, app: Celery, redlock: TaskLock, *, is_known: bool) -> None:
        self._app = app
        self._redlock = redlock
        self._is_known = is_known
        self._silent: set[str] = set()
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start a thread that checks the nodes every ten seconds."""
        threading.Thread(
            target=run_as_own, args=(self._run,), name="redlock-node-watch", daemon=True
        ).start()

    def stop(self) -> None:
        """End the thread before its next check."""
        self._is_over.set()

    def check(self) -> None:
        """Ask every node, and report changes since the last check."""
        # `check` raises if any node is not an independent master; the others still count here.
        why = _reasons(self._redlock.judge())
        self._send(signals.nodes_checked, votes=len(self._redlock.nodes) - len(why))
        before, self._silent = self._silent, set(why)
        for node in sorted(self._silent - before):
            signals.node_down.send(sender=self._app, node=node, error=why[node])
        for node in sorted(before - self._silent):
            logger.info("node votes again node=%s", node)
            signals.node_up.send(sender=self._app, node=node)
        if self._silent - before:
            self._report_degraded(why)
        self._is_known = False
        is_back = len(self._redlock.nodes) - len(before) < self._redlock.quorum <= self._votes()
        if is_back:
            logger.warning("quorum is back votes=%d of=%d", self._votes(), len(self._redlock.nodes))

    def _votes(self) -> int:
        return len(self._redlock.nodes) - len(self._silent)

    def _report_degraded(self, why: dict[str, str]) -> None:
        votes, nodes = self._votes(), len(self._redlock.nodes)
        if votes < self._redlock.quorum and not self._is_known:
            errors = "; ".join(f"{node}: {error}" for node, error in why.items())
            logger.error(
                "quorum lost, no lock can be acquired votes=%d of=%d errors=%s",
                votes, nodes, errors,
            )  # fmt: skip
        self._send(signals.quorum_degraded, votes=votes)

    def _send(self, signal: Signal, votes: int) -> None:
        nodes, needed = len(self._redlock.nodes), self._redlock.quorum
        signal.send(sender=self._app, votes=votes, nodes=nodes, needed=needed)

    def _run(self) -> None:
        while not self._is_over.is_set():
            # Receivers of its signals may raise anything.
            callbacks.call(self.check, failed="node watch failed, continuing")
            self._is_over.wait(_INTERVAL_S)


def log_first_check(redlock: TaskLock) -> bool:
    """Check every node, and log how many vote, and when and why not the others.

    Returns:
        Whether a quorum votes.

    Raises:
        ConfigurationError: The nodes can never be a quorum.
    """
    judged = redlock.judge()
    refuse_misconfigured(redlock.nodes)
    why = _reasons(judged)
    nodes, needed = len(judged), redlock.quorum
    votes = nodes - len(why)
    if not why:
        logger.info("nodes checked votes=%d of=%d needed=%d", votes, nodes, needed)
        return True
    others = "; ".join(f"{node}: {reason}" for node, reason in why.items())
    waits = sorted(one.votes_in for one in judged if one.state is State.GUARDED)
    if votes >= needed:
        logger.warning(
            "nodes checked votes=%d of=%d needed=%d others=%s", votes, nodes, needed, others
        )
    elif votes + len(waits) >= needed:
        logger.warning(
            "no quorum votes yet, no lock can be acquired, new nodes can be admitted "
            "wait_s=%.0f votes=%d of=%d needed=%d others=%s",
            waits[needed - votes - 1], votes, nodes, needed, others,
        )  # fmt: skip
    else:
        logger.error(
            "no quorum at start, no lock can be acquired votes=%d of=%d needed=%d errors=%s",
            votes, nodes, needed, others,
        )  # fmt: skip
    return votes >= needed


def _reasons(judged: list[Judgement]) -> dict[str, str]:
    """Return, by node, the reason why one does not vote."""
    return {one.node: one.why for one in judged if one.why is not None}


def mute_node_lines(redlock: TaskLock) -> TaskLock:
    """Return `redlock`, whose log lines about nodes are left to the node watch from now on."""
    redlock.log = log_event_of_leases
    return redlock
