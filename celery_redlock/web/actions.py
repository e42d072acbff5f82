"""The actions of operators: a release, and the end of a run, each after a confirmation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flask import Flask, abort, render_template, request
from flask.typing import ResponseReturnValue

from celery_redlock.operate.ending import CONSEQUENCE, SIGNALS, Order, end_held_by, run_under
from celery_redlock.operate.removal import operator, removal_of, remove_held_by
from celery_redlock.operate.target import Target
from celery_redlock.redlock.errors import shown

logger = logging.getLogger(__name__)


def add_release(page: Flask, target: Target, now: Callable[[], float]) -> None:
    """Add the release of a lock, a reservation, a pending slot or a done mark."""

    @page.get("/release")
    def confirm() -> ResponseReturnValue:
        key, label = request.args.get("key", ""), request.args.get("done")
        with target.nodes() as nodes:
            removal = removal_of(target, nodes, key, label)
        if removal is None:
            abort(404, f"There is nothing to release: no node has {label or key!r}.")
        lock, meaning = removal
        return render_template("release.html", lock=lock, meaning=meaning, label=label, now=now())

    @page.post("/release")
    def release() -> ResponseReturnValue:
        key, label = request.values.get("key", ""), request.values.get("done")
        expected = request.form.get("expect")
        with target.nodes() as nodes:
            is_released = remove_held_by(target, nodes, key, label, expected, _author(), _reason())
        if not is_released:
            abort(409, f"{key} was not released: it has another holder by now, or none.")
        logger.warning("lock released on the page key=%s id=%s", shown(key), expected)
        return render_template("message.html", title="Released", text=f"{key} is released.")


def add_end(page: Flask, target: Target, now: Callable[[], float]) -> None:
    """Add the end of the run that holds a lock."""

    @page.get("/end")
    def confirm_end() -> ResponseReturnValue:
        key = request.args.get("key", "")
        with target.nodes() as nodes:
            run = run_under(target, nodes, key)
        if isinstance(run, str):
            abort(404, f"No run to end under {key!r}: {run}.")
        return render_template(
            "end.html", lock=run, meaning=CONSEQUENCE, signals=SIGNALS, now=now()
        )

    @page.post("/end")
    def end_run() -> ResponseReturnValue:
        key, expected = request.values.get("key", ""), request.form.get("expect", "")
        order = Order(_author(), _reason(), request.form.get("signal", SIGNALS[0]))
        with target.nodes() as nodes:
            became = end_held_by(target, nodes, key, expected, order, time.sleep)
        logger.warning(
            "run ordered to end on the page key=%s id=%s outcome=%s",
            shown(key), shown(expected), shown(became.outcome),
        )  # fmt: skip
        text = f"{became.outcome}."
        return render_template("ended.html", key=key, text=text, is_ended=became.is_ended), (
            200 if became.is_ended else 409
        )


def _author() -> str:
    return f"the page of {operator()}"


def _reason() -> str:
    return request.form.get("reason", "")
