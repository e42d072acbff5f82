"""Releases of many locks at a time: those without a message, or all of a task and kind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click

from celery_redlock.units import count, seconds

from .command_line import same_command, same_command_with_app
from .list_ import say_doubt
from .show import lock_text
from .target import has_answers, say_left_out
from .text import document, visible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.node_set import NodeSet
    from celery_redlock.operate.target import Target


class How(NamedTuple):
    """How locks are released: why, whether at all, and whether JSON is printed."""

    reason: str
    yes: bool
    as_json: bool


def release_orphaned(
    target: Target, nodes: NodeSet, grace: float, queues: tuple[str, ...], how: How
) -> bool:
    """Release reservations without a message; return whether all are, and a quorum answered.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        grace: How long a message must be missing, seconds.
        queues: Queues to look at that nobody else names.
        how: How they are released.

    Raises:
        UsageError: There is no app.
    """
    from celery_redlock.operate.orphans import orphans

    if target.app is None:
        raise click.UsageError(f"--orphaned needs an app: {same_command_with_app()}")
    locks, unseen = orphans(target, nodes, grace, time.sleep, queues)
    errors = nodes.errors
    are_released = _release(target, nodes, locks, "reservation", " without a message", how)
    for messages in unseen:
        click.echo(f"Not seen: {visible(messages)}.", err=True)
    return _is_known(target, errors, locks, how) and (are_released or not how.yes)


def release_kinds(
    target: Target,
    nodes: NodeSet,
    task: str,
    kinds: Collection[str],
    older_than: float | None,
    how: How,
) -> bool:
    """Release the locks of a task of some kinds; return whether all are, and a quorum answered.

    Args:
        target: The nodes.
        nodes: Connections to them.
        task: Name of the task.
        kinds: Kinds, as `list` shows them.
        older_than: Least age, seconds; None: any. Locks whose age is unknown are kept.
        how: How they are released.
    """
    from celery_redlock.operate.removal import consequence, locks_of
    from celery_redlock.operate.tasks import options_of

    locks, ageless = locks_of(nodes, target.key_prefix, task, kinds, older_than, time.time())
    errors = nodes.errors
    if not (locks or ageless):
        say_doubt(target, task)
    options = options_of(target.app, task)
    if not how.as_json:
        for meaning in sorted({consequence(lock, options) for lock in locks}):
            click.echo(f"Consequence: {meaning}.")
    age = "" if older_than is None else f" older than {seconds(older_than)}"
    are_released = _release(target, nodes, locks, "lock", age, how)
    if ageless:
        click.echo(f"Kept, because their age is unknown: {count(ageless, 'lock')}.", err=True)
    return _is_known(target, errors, locks, how) and (are_released or not how.yes)


def _release(
    target: Target, nodes: NodeSet, locks: Sequence[Lock], noun: str, which: str, how: How
) -> bool:
    """Release locks if that is asked for, and print each; return whether all are released."""
    from celery_redlock.operate.removal import operator, remove

    released = []
    for lock in locks:
        is_released = how.yes and remove(target, nodes, lock, operator(), how.reason)
        released.append((lock, is_released))
        if not how.as_json:
            done = ", released" if is_released else ", not released" if how.yes else ""
            click.echo(f"{visible(lock.key)}: {lock_text(lock, time.time())}{done}")
    if how.as_json:
        now = time.time()
        click.echo(document([lock.as_json(now) | {"released": done} for lock, done in released]))
    else:
        click.echo(f"{count(len(locks), noun)}{which}.")
    return all(done for _, done in released)


def _is_known(target: Target, errors: Mapping[str, str], locks: Sequence[Lock], how: How) -> bool:
    """Print how to release the locks; return whether a quorum has answered which there are."""
    say_left_out(errors)
    is_known = has_answers(target, errors)
    if locks and not how.yes and not how.as_json:
        click.echo(f"Nothing was released. To release: {same_command('--yes')}")
    return is_known
