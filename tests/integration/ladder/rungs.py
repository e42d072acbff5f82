"""The rungs in their order, and a run of one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from . import accidents, foils
from .accidents import Stage
from .foils import NewClient
from .ours import Ours

OURS = "celery-redlock"


@dataclass(frozen=True, slots=True)
class Rung:
    """One lock of the ladder.

    Attributes:
        name: As the page names it.
        foil: The lock.
        accident: What is known to break it.
    """

    name: str
    foil: NewClient
    accident: Callable[[Stage], None]


RUNGS = (
    Rung("SETNX, then EXPIRE", foils.SetnxThenExpire, accidents.killed_in_between),
    Rung("GETSET of a timestamp", foils.GetsetTimestamps, accidents.contended_while_dead),
    Rung("GET, then GETSET", foils.GetThenGetset, accidents.date_ahead),
    Rung("SET NX PX, then DEL", foils.SetNxPlainDel, accidents.released_late),
    Rung("The time as value", foils.TimestampAsValue, accidents.released_late_in_one_second),
    Rung("A random value on one master", foils.OneMaster, accidents.failed_over),
    Rung("Redlock without a token", foils.PlainRedlock, accidents.written_late),
    Rung("Redlock without a guard", foils.PlainRedlock, accidents.restarted_empty),
)


def run(rung: Rung, *, is_ours: bool) -> Stage:
    """Let the rung's accident happen to its foil or to this package's lock."""
    with ExitStack() as stack:
        stage = Stage(Ours if is_ours else rung.foil, stack)
        stage.lines.append(f"{OURS if is_ours else rung.name}:")
        rung.accident(stage)
        return stage
