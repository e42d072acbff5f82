"""Counts of the demo's outcomes, from Celery's results and the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from celery import states
from celery.result import AsyncResult
from rich.table import Table

from celery_redlock import DuplicateTask

from .ledger import Ledger

if TYPE_CHECKING:
    Result = AsyncResult[Any]
else:  # up to Celery 5.6 it can't be subscripted
    Result = AsyncResult


@dataclass(frozen=True, slots=True)
class Score:
    """How many tasks were sent, ran, were skipped; what was issued, refused, issued twice."""

    sent: int
    ran: int
    skipped: int
    issued: int
    refused: int
    duplicates: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(
            *(mine + theirs for mine, theirs in zip(_numbers(self), _numbers(other), strict=True))
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """One part of the demo: its invoices, the tasks that it sent, and the expected score."""

    title: str
    invoices: Sequence[str]
    sent: Sequence[Result]
    expected: Score

    def score(self, ledger: Ledger) -> Score:
        """Return the counts of this scene."""
        actions = [entry.action for entry in ledger.journal() if entry.invoice in self.invoices]
        issued = [doc.invoice for doc in ledger.documents() if doc.invoice in self.invoices]
        return Score(
            sent=len(self.sent),
            ran=actions.count("claimed"),
            skipped=sum(is_skipped(result) for result in self.sent),
            issued=len(issued),
            refused=actions.count("refused"),
            duplicates=len(issued) - len(set(issued)),
        )


def is_skipped(result: Result) -> bool:
    """Return whether a task ended without running because another one held its lock."""
    state = str(result.state)  # celery-types knows fewer states than Celery
    return state == states.REVOKED and isinstance(result.result, DuplicateTask)


def score_table(scenes: Sequence[Scene], ledger: Ledger) -> Table:
    """Return every scene's score and the sum of all."""
    scores = [scene.score(ledger) for scene in scenes]
    table = Table(title="From the ledger and the task results", title_justify="left")
    table.add_column("")
    for name in ("sent", "ran", "skipped", "issued", "stale writes\nrefused", "duplicates"):
        table.add_column(name, justify="right")
    for scene, score in zip(scenes, scores, strict=True):
        table.add_row(scene.title, *map(str, _numbers(score)))
    table.add_section()
    total = sum(scores, Score(0, 0, 0, 0, 0))
    table.add_row("all", *map(str, _numbers(total)), style="bold")
    return table


def mistakes(scenes: Sequence[Scene], ledger: Ledger) -> list[str]:
    """Return a line for every wrong number."""
    lines = []
    for scene in scenes:
        found, expected = asdict(scene.score(ledger)), asdict(scene.expected)
        lines += [
            f"{scene.title}: {name} is {found[name]}, must be {expected[name]}"
            for name in expected
            if found[name] != expected[name]
        ]
    return lines


def _numbers(score: Score) -> list[int]:
    return [getattr(score, field.name) for field in fields(score)]
