"""Steps of Celery's worker: checks and threads that start with it."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import bootsteps
from celery.concurrency.prefork import TaskPool
from celery.signals import worker_shutdown

from celery_redlock.config.app_lock import is_enabled, log_weak_locking, new_redlock, redlock_of
from celery_redlock.config.borrowed import is_bystander
from celery_redlock.config.settings import settings_from
from celery_redlock.execution import execution  # noqa: F401  # before the pool forks
from celery_redlock.execution.kills import is_received_and_revoked
from celery_redlock.pools import pool_process
from celery_redlock.pools.prefork_keeper import PreforkKeeper, is_supported

from . import control  # noqa: F401  # registers the remote control commands
from .node_watch import NodeWatch, log_first_check, mute_node_lines
from .peers import ANSWERS, EVENT, ROUTING_KEY, Peers, peers_of
from .signal_handlers import keepers, note_shutdown, release_unrunnable

logger = logging.getLogger(__name__)
_INTRODUCE_S = 1.0
_MOST_INTRODUCTIONS = 30


def _locks(app: Any) -> bool:
    """Return whether the app's workers lock at all."""
    return is_enabled(app) and not is_bystander(app)


class CheckNodes(bootsteps.Step):
    """Step that refuses to start the worker with nodes that can never be a quorum.

    Nodes that are only unreachable are logged: they may come back.
    """

    requires = ("celery.worker.components:Timer",)

    def create(self, parent: Any) -> None:
        """Connect to every node once, and close the connections before the pool forks.

        Here and not in `start`: Celery starts steps in an order that changes from run to run, and
        the pool may have forked by then.

        Raises:
            ConfigurationError: The nodes can never be a quorum.
        """
        app = parent.app
        if not is_enabled(app):
            log_weak_locking(app)
            return
        if is_bystander(app):
            logger.warning(
                "no node to lock on, the singleton tasks of other apps fail here app=%s", app.main
            )
            return
        redlock = mute_node_lines(new_redlock(settings_from(app.conf)))
        try:
            parent.redlock_has_quorum = log_first_check(redlock)
        finally:
            redlock.close()


class PoolKeeper(bootsteps.StartStopStep):
    """Step that runs the keeper of a prefork pool in the worker's main process."""

    requires = ("celery.worker.components:Pool",)
    _keeper: PreforkKeeper | None = None

    def create(self, parent: Any) -> None:
        """Make the keeper, whose pipe and lease table the pool's processes inherit."""
        app = parent.app
        pool_process.note_shutdown(is_under_way=False)
        _end_waits_in_soft_shutdown(parent)
        forks = getattr(parent, "pool_start_method", "fork") == "fork"
        is_prefork = forks and issubclass(parent.pool_cls, TaskPool)
        if is_prefork and _locks(app) and is_supported():
            self._keeper = PreforkKeeper(
                lambda: mute_node_lines(new_redlock(settings_from(app.conf))),
                is_received_and_revoked,
            )
            keepers[os.getpid()] = app, self._keeper

    def start(self, parent: Any) -> None:
        """Start the keeper's thread."""
        keeper = self._keeper
        if keeper:
            keeper.start()
            # A warm shutdown calls `stop` before the pool's processes have ended.
            worker_shutdown.connect(lambda **_: keeper.stop(), sender=parent, weak=False)

    def stop(self, _parent: Any) -> None:
        """Note the shutdown, however it began, before the pool waits for running tasks."""
        note_shutdown()


def _end_waits_in_soft_shutdown(parent: Any) -> None:
    """Have a soft shutdown noted as it begins, for waits to end within its timeout.

    Celery sends its signal, and stops its steps, only when the timeout is over and running tasks
    have been cancelled. A message that is acknowledged early and still waits is lost then.
    """
    wait_for_soft_shutdown = parent.wait_for_soft_shutdown

    def noted() -> None:
        note_shutdown()
        wait_for_soft_shutdown()

    parent.wait_for_soft_shutdown = noted


class WatchNodes(bootsteps.StartStopStep):
    """Step that watches the nodes: a worker without tasks would not notice that one is down."""

    # After the fork: its thread and connections belong to the main process.
    requires = ("celery.worker.components:Pool",)
    _watch: NodeWatch | None = None

    def start(self, parent: Any) -> None:
        """Start the watch."""
        if _locks(parent.app):
            is_known = not parent.redlock_has_quorum
            self._watch = NodeWatch(parent.app, redlock_of(parent.app), is_known=is_known)
            self._watch.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002  # as Celery calls it
        """Stop the watch."""
        if self._watch:
            self._watch.stop()

    terminate = stop


class UnreadableMessages(bootsteps.Step):
    """Step of the consumer that releases the reservations of messages it can't decode.

    Celery acknowledges such a message and sends no signal.
    """

    def create(self, parent: Any) -> None:
        """Wrap the consumer's handler before anything is consumed."""
        discard = parent.on_decode_error

        def on_decode_error(message: Any, error: Exception) -> None:
            discard(message, error)
            release_unrunnable(parent.app, message)

        parent.on_decode_error = on_decode_error


class ComparePlacements(bootsteps.StartStopStep):
    """Step of the consumer that compares with other processes where their locks are.

    With the worker's option --without-gossip, and with a broker that has no events, the worker
    tells the others nothing, and compares only what publishers write into messages.
    """

    requires = ("celery.worker.consumer.gossip:Gossip",)
    _introductions_left = 0

    def start(self, parent: Any) -> None:
        """Introduce the worker to the others; called again after a lost connection to the broker.

        Those whose locks are elsewhere answer.
        """
        app = parent.app
        if not _locks(app):
            return
        peers = peers_of.setdefault(app, Peers(app, redlock_of(app), parent.hostname))
        if not parent.gossip.enabled:
            return

        def introduce(**more: str) -> None:
            parent.event_dispatcher.send(EVENT, **peers.introduction(), **more)

        def introduce_again() -> None:
            if self._introductions_left:
                self._introductions_left -= 1
                parent.timer.call_after(_INTRODUCE_S, introduce_again)
                peers.ask_nodes_once()
                introduce()

        def on_introduction(event: Any) -> None:
            # The consumer would end with an error that a handler raises.
            try:
                if peers.is_own_introduction(event):
                    self.stop()
                elif peers.heard(event):
                    introduce(**{ANSWERS: str(event["hostname"])})
            except Exception:
                logger.exception("introduction of another worker not handled")

        parent.gossip.event_handlers[ROUTING_KEY] = on_introduction
        # Until it is heard here, so that answers are: a subscription takes effect some time later.
        self._introductions_left = _MOST_INTRODUCTIONS
        parent.timer.call_after(_INTRODUCE_S, introduce_again)

    def stop(self, _parent: object = None) -> None:
        """End the introduction."""
        # The timer's entry is not enough: gevent's goes on when it is cancelled.
        self._introductions_left = 0
