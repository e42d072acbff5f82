"""Checks of an app: its broker, its tasks and beat."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues

from celery_redlock.beat.scheduler import base_of
from celery_redlock.config.app_lock import is_enabled
from celery_redlock.config.identity import identity_of
from celery_redlock.config.options import LockOptions
from celery_redlock.config.settings import beat_settings_from
from celery_redlock.config.task_config import refusing_later, task_lock_config
from celery_redlock.keys import KeyRule
from celery_redlock.messages.broker import visibility_timeout
from celery_redlock.messages.origin import is_bound
from celery_redlock.operate.listing import each_lock
from celery_redlock.operate.locks import Kind, Lock, escaped
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import NodeStatus
from celery_redlock.operate.target import Target
from celery_redlock.operate.tasks import singleton_tasks
from celery_redlock.operate.timeline import certain, tick_of
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.quorum import validity_ms
from celery_redlock.task import SingletonTask

from . import traps
from .traps import Finding, Severity
from .workers import worker_findings

_TTL_TRIPS = 10
_UNSTABLE_NAMES = frozenset(
    {"correlation_id", "nonce", "now", "request_id", "span_id", "timestamp", "trace_id", "ts"}
)
_UNSTABLE_TYPES = frozenset({"datetime"})
_TENANTS = ("tenant_schemas_celery", "django_tenants", "tenant_schemas")


def app_findings(
    target: Target, nodes: NodeSet, statuses: Sequence[NodeStatus]
) -> Iterator[Finding]:
    """Yield what is wrong with the app."""
    app = target.app
    if not is_enabled(app):
        yield traps.DISABLED.at("redlock_enabled", "False")
    try:
        with refusing_later():
            tasks = list(singleton_tasks(app).values())
    except ConfigurationError as error:  # of a module that fails as it is imported
        yield traps.OPTIONS.at("tasks", str(error), Severity.ERROR)
        tasks = []
    round_trip = _round_trip_of_quorum(target, statuses)
    shared: list[str] = []
    for task in tasks:
        yield from _of_acknowledgement(task)
        try:
            config = task_lock_config(task, app)
        except ConfigurationError as error:
            yield traps.OPTIONS.at(str(task.name), str(error), Severity.ERROR)
        else:
            yield from _of_options(task, config.options)
            yield from _of_key(str(task.name), config.rule)
            yield from _of_ttl(str(task.name), config.options, round_trip)
            if not callable(config.rule.lock_key):
                shared.append(str(task.name))
    if is_enabled(app):
        yield from worker_findings(target, nodes, statuses, [str(task.name) for task in tasks])
    yield from _of_tenants(shared)
    yield from _of_visibility(app, tasks)
    yield from _of_quorum_queues(app)
    yield from _of_broadcasts(app, tasks)
    yield from _of_beat(target, nodes)


def _of_options(task: SingletonTask, options: LockOptions) -> Iterator[Finding]:
    name, limit = str(task.name), _time_limit(task)
    if limit and options.max_hold is not None and options.max_hold < limit:
        what = (
            f"lock_max_hold = {options.max_hold:g} s is shorter than its time limit, {limit:g} s: "
            "its lease ends first"
        )
        yield traps.OPTIONS.at(name, what)
    if limit and options.wait is not None and options.wait >= limit:
        what = (
            f"lock_wait = {options.wait:g} s is not shorter than its time limit, {limit:g} s, "
            "which counts from the beginning of the wait"
        )
        yield traps.OPTIONS.at(name, what)


def _of_key(name: str, rule: KeyRule) -> Iterator[Finding]:
    parameters = rule.signature.parameters
    for parameter in _in_key(rule):
        annotation = parameters[parameter].annotation
        kind = str(getattr(annotation, "__name__", annotation)).rpartition(".")[2]
        if parameter in _UNSTABLE_NAMES or kind in _UNSTABLE_TYPES:
            what = f"the argument {parameter!r}" + (f" ({kind})" if kind in _UNSTABLE_TYPES else "")
            yield traps.KEYS.at(name, f"{what} is part of the key")


def _of_tenants(shared: Sequence[str]) -> Iterator[Finding]:
    """Yield the tasks whose keys name no schema, where there are schemas."""
    loaded = [name for name in _TENANTS if name in sys.modules]
    if loaded and shared:
        what = f"{loaded[0]} is loaded, and no schema is in the keys of {', '.join(shared)}"
        yield traps.TENANTS.at("lock_key", what)


def _in_key(rule: KeyRule) -> Iterable[str]:
    """Return the parameters that are part of the key, as far as they are known before a call."""
    if rule.lock_key is None:
        return rule.signature.parameters
    if isinstance(rule.lock_key, tuple):
        return rule.lock_key
    return getattr(rule.lock_key, "parameters", ())


def _round_trip_of_quorum(target: Target, statuses: Sequence[NodeStatus]) -> float | None:
    """Return how long the fastest quorum takes to answer, seconds; None: too few answer."""
    measured = sorted(status.latency for status in statuses if status.latency is not None)
    return measured[target.quorum - 1] if len(measured) >= target.quorum else None


def _of_ttl(name: str, options: LockOptions, round_trip: float | None) -> Iterator[Finding]:
    if round_trip is None or not options.lifetime.holds_while_running:
        return
    ttl_ms, trip_ms = options.ttl * 1000, round_trip * 1000
    if ttl_ms < _TTL_TRIPS * trip_ms:
        is_fatal = validity_ms(ttl_ms, trip_ms) <= 0
        severity = Severity.ERROR if is_fatal else Severity.WARNING
        what = f"lock_ttl = {options.ttl:g} s, and a quorum answers in {trip_ms:.0f} ms"
        yield traps.TTL.at(name, what, severity)


def _time_limit(task: SingletonTask) -> float | None:
    conf: Any = task.app.conf
    return task.time_limit or conf.task_time_limit


def _of_acknowledgement(task: SingletonTask) -> Iterator[Finding]:
    if task.acks_late and not task.reject_on_worker_lost:
        yield traps.WORKER_LOST.at(str(task.name), "acks_late is set, reject_on_worker_lost is not")


def _of_visibility(app: Any, tasks: list[SingletonTask]) -> Iterator[Finding]:
    """Yield the tasks that outlast the visibility timeout of a broker that has one."""
    if _driver_type(app) not in ("redis", "sqs"):
        return
    timeout = visibility_timeout(app)
    for task in tasks:
        limit = _time_limit(task)
        if task.acks_late and limit and limit > timeout:
            what = f"its time limit is {limit:g} s, visibility_timeout {timeout:g} s"
            yield traps.VISIBILITY.at(str(task.name), what)
        backoff = getattr(task, "retry_backoff", False)
        longest = float(getattr(task, "retry_backoff_max", 600) if backoff else 0)
        delay = max(longest, float(task.default_retry_delay or 0))
        if delay > timeout:
            what = f"its retries wait for up to {delay:g} s, visibility_timeout is {timeout:g} s"
            yield traps.VISIBILITY.at(str(task.name), what)
    ours = {task.name for task in tasks}
    for name, entry in (app.conf.beat_schedule or {}).items():
        is_ours = isinstance(entry, Mapping) and entry.get("task") in ours
        countdown = ((entry.get("options") or {}).get("countdown") or 0) if is_ours else 0
        if countdown > timeout:
            what = f"its countdown is {countdown:g} s, visibility_timeout {timeout:g} s"
            yield traps.VISIBILITY.at(f"beat entry {name}", what)


def _of_quorum_queues(app: Any) -> Iterator[Finding]:
    driver = _driver_type(app)
    has_one, queue = detect_quorum_queues(app, driver)
    if not has_one:
        return
    if not app.conf.worker_detect_quorum_queues:
        what = f"queue {queue} is a quorum queue, worker_detect_quorum_queues is False"
        yield traps.QUORUM_QUEUE.at("worker_detect_quorum_queues", what, Severity.ERROR)
    exchange = app.amqp.queues[queue].exchange
    if exchange.type != "topic":
        what = f"queue {queue} is bound to a {exchange.type} exchange: countdowns are not delayed"
        yield traps.QUORUM_QUEUE.at(str(queue), what)


def _of_broadcasts(app: Any, tasks: list[SingletonTask]) -> Iterator[Finding]:
    """Yield the tasks whose messages go to a fanout exchange, or to several declared queues."""
    for task in tasks:
        exchange, key = _exchange_of(task)
        bound = [one for one in app.amqp.queues.values() if is_bound(one, exchange, key)]
        if len(bound) > 1 or any(one.exchange.type == "fanout" for one in bound):
            names = ", ".join(sorted(str(one.alias or one.name) for one in bound))
            what = f"the exchange {exchange} delivers its messages to every queue of: {names}"
            yield traps.BROADCAST.at(str(task.name), what)


def _exchange_of(task: Any) -> tuple[str, str]:
    """Return the exchange and the key that a task is published with; '' twice: its queue's name."""
    own = {name: getattr(task, name, None) for name in ("queue", "exchange", "routing_key")}
    try:
        route = task.app.amqp.router.route(own, task.name, (), {}, task)
    except Exception:  # noqa: BLE001  # a router of the user's may need a real call
        return "", ""
    queue, exchange, key = (route.get(name) for name in ("queue", "exchange", "routing_key"))
    if queue is not None and not exchange:
        exchange = "" if queue.exchange.type == "direct" else queue.exchange.name
    return str(exchange), str(key or (queue.routing_key if queue is not None else ""))


def _of_beat(target: Target, nodes: NodeSet) -> Iterator[Finding]:
    conf = target.app.conf
    try:
        base_of(beat_settings_from(conf).scheduler)
    except Exception as error:  # noqa: BLE001  # of a module that fails as it is imported
        yield traps.BEAT_SETTINGS.at("beat", str(error), Severity.ERROR)
    pattern = f"%beat:{escaped(identity_of(target.app))}:*"
    claims = list(each_lock(nodes, target.key_prefix, pattern))
    yield from _of_missed(claims)
    if doubt := nodes.doubt:
        yield traps.MISSED.at("beat", f"its notes could not be read: {doubt}", Severity.UNKNOWN)
    # It may be named on the command line: then its claims are on the nodes.
    if conf.beat_schedule and not _is_ours(conf.beat_scheduler) and not claims:
        seen = (
            f"its claims could not be read: {doubt}" if doubt else "no claim of a tick is on a node"
        )
        what = f"beat_scheduler = {conf.beat_scheduler!r}, and {seen}"
        yield traps.BEAT.at("beat_scheduler", what, Severity.UNKNOWN if doubt else Severity.WARNING)


def _of_missed(claims: Sequence[Lock]) -> Iterator[Finding]:
    """Yield the entries of which ticks were missed, by the notes of beat's replicas."""
    keys = {tick: claim.key for claim in claims if (tick := tick_of(claim))}
    missed = sorted(tick for tick in certain([*keys]) if tick.state is Kind.MISSED)
    for entry, those in groupby(missed, key=lambda tick: tick.entry):
        ticks = [*those]
        last = ticks[-1]
        what = f"{last.slot}: {last.why}; the last of {len(ticks)} that were noted"
        yield traps.MISSED.at(f"beat entry {entry}", what, key=keys[last])


def _is_ours(scheduler: object) -> bool:
    module = getattr(scheduler, "__module__", scheduler)
    return scheduler == "redlock" or str(module).startswith("celery_redlock.")


def _driver_type(app: Any) -> str:
    return str(app.connection_for_read().get_transport_cls().driver_type)
