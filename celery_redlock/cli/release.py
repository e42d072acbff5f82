"""The command ``celery -A proj redlock release``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from celery_redlock.units import seconds

from .command_line import confirming
from .key import takes_key
from .list_ import KINDS
from .parameters import TEXT, Duration, Seconds
from .releases import How, release_kinds, release_orphaned
from .show import lock_text
from .target import as_json, takes_reason, target_of
from .text import document, visible

if TYPE_CHECKING:
    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.node_set import NodeSet
    from celery_redlock.operate.target import Target

    from .key import GivenKey


@click.command()
@takes_key
@click.option(
    "--done", "label", type=TEXT, help="Delete this done mark of the key, as `show` lists it."
)
@click.option("--expect", "expected", help="Release only the holder with this id.")
@click.option(
    "--orphaned",
    is_flag=True,
    help="Release the reservations whose message is gone, for instance after a purge. With an app "
    "only, whose broker is Redis or RabbitMQ.",
)
@click.option(
    "--queue",
    "queues",
    type=TEXT,
    multiple=True,
    help="With --orphaned: a queue to look at that the app does not declare, and no worker "
    "consumes; may be repeated.",
)
@click.option(
    "--grace",
    type=Seconds(min=0),
    default=10.0,
    show_default=True,
    help="How long a message must be missing, in seconds.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="With --task: release all locks of the task of this kind; may be repeated.",
)
@click.option(
    "--older-than", type=Duration(), help="With --kind: only those held for so long, such as 1h."
)
@takes_reason
@click.option("--yes", is_flag=True, help="Release; without it, only show what would happen.")
@as_json
@click.pass_context
def release(  # noqa: PLR0913  # an argument for each option
    ctx: click.Context,
    *,
    given: GivenKey | None,
    label: str | None,
    expected: str | None,
    orphaned: bool,
    queues: tuple[str, ...],
    grace: float,
    kinds: tuple[str, ...],
    older_than: float | None,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Release a lock, a reservation, a pending slot or a done mark; with --kind all of a task.

    KEY is as in `list`. With --task the key is computed as the app does. A lock is released only
    if its holder is still the one that is shown.
    Exits with 1 if the key has nothing to release, another holder has it by now, or fewer nodes
    than a quorum answer. With --kind and --orphaned, nothing to release is no failure.
    """
    target = target_of(ctx)
    _refuse_others(given, orphaned=orphaned, queues=queues, kinds=kinds, older_than=older_than)
    task = _task_of(given, label, expected) if kinds else None
    how = How(reason, yes=yes, as_json=as_json)
    with target.nodes() as nodes:
        if given is None:
            released = release_orphaned(target, nodes, grace, queues, how)
        elif task is not None:
            released = release_kinds(target, nodes, task, {*kinds}, older_than, how)
        else:
            released = _one(target, nodes, given.on(target), label, expected, how)
    ctx.exit(0 if released else 1)


def _refuse_others(
    given: GivenKey | None,
    *,
    orphaned: bool,
    queues: tuple[str, ...],
    kinds: tuple[str, ...],
    older_than: float | None,
) -> None:
    """Refuse what is an option of another kind of release.

    Raises:
        UsageError: There is such an option, or it is not said what to release.
    """
    if (given is None) is not orphaned:
        raise click.UsageError("Give a KEY, or --task with its arguments, or --orphaned.")
    if queues and not orphaned:
        raise click.UsageError("--queue is an option of --orphaned.")
    if older_than is not None and not kinds:
        raise click.UsageError("--older-than is an option of --kind.")


def _task_of(given: GivenKey | None, label: str | None, expected: str | None) -> str:
    """Return the task whose locks are to be released.

    Raises:
        UsageError: Something else is given.
    """
    is_one = (label, expected) != (None, None)
    if is_one or given is None or given.task is None or given.args or given.kwargs:
        raise click.UsageError("--kind needs --task, and no key, call, --done, --expect.")
    return given.task


def _one(
    target: Target,
    nodes: NodeSet,
    key: str,
    label: str | None,
    expected: str | None,
    how: How,
) -> bool:
    from celery_redlock.operate.removal import operator, removal_of, remove

    removal = removal_of(target, nodes, key, label)
    if removal is None:
        what = f"done mark {label!r} of {key!r}" if label else repr(key)
        raise click.ClickException(f"there is nothing to release: no node has {what}")
    lock, meaning = removal
    is_other = expected not in (None, lock.id)
    released = how.yes and not is_other and remove(target, nodes, lock, operator(), how.reason)
    if how.as_json:
        shown = {"released": released, "consequence": meaning} | lock.as_json(time.time())
        click.echo(document(shown))
        return released or not (how.yes or is_other)
    click.echo(f"{visible(key)}: {_text(lock)}\nConsequence: {meaning}.\n")
    if is_other:
        click.echo(f"Not released: its id is not {visible(str(expected))}.")
        return False
    if not how.yes:
        click.echo(f"Nothing was released. To release it: {confirming(lock.id, expected)}")
        return True
    click.echo("Released." if released else "Not released: it has another holder by now, or none.")
    return released


def _text(lock: Lock) -> str:
    if lock.kind.value == "done":
        left = seconds(lock.remaining)
        return f"done mark {visible(lock.owner)}, for another {left} (id {lock.id})"
    return lock_text(lock, time.time())
