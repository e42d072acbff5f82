"""Judge of what beat published: each slot of a schedule in force once, and no other.

Slots are computed here, not by the package: the multiples of an interval since the epoch, and the
time of a clocked entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Slot = tuple[str, float]
"""Name of an entry, and seconds since the epoch."""
_INSTANT = 1e-6
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Between:
    """A moment that is known to lie between two, seconds since the epoch."""

    earliest: float
    latest: float


@dataclass(slots=True, eq=False)
class Span:
    """An entry with one schedule, for as long as it is in force.

    Attributes:
        name: The entry's name.
        every: Its slots are the multiples of so many seconds; None: it is clocked.
        at: The one slot of a clocked entry.
        began: When it came into force.
        ended: When it went out of force.
    """

    name: str
    began: Between
    every: float | None = None
    at: float = 0.0
    ended: Between = Between(_FOREVER, _FOREVER)

    def slots(self, after: float, until: float) -> Iterator[Slot]:
        """Yield the slots later than `after` and not later than `until`."""
        if self.every is None:
            if after < self.at <= until:
                yield self.name, self.at
            return
        number = int((after + _INSTANT) // self.every) + 1
        while number * self.every <= until:
            yield self.name, number * self.every
            number += 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was wrong with what was published.

    Attributes:
        due: How many slots were in force for certain.
        old: Slots that were published and not in force, those still to come too.
        lost: Slots in force that nobody published.
        doubled: Slots that were published more than once.
    """

    due: int
    old: list[Slot]
    lost: list[Slot]
    doubled: list[Slot]

    @property
    def is_right(self) -> bool:
        """Whether each slot in force was published once, and no other."""
        return not (self.old or self.lost or self.doubled)


def judge(
    spans: Iterable[Span],
    published: Iterable[Slot],
    begin: float,
    end: float,
    excused: Sequence[Between] = (),
) -> Judgement:
    """Judge what was published of the slots later than `begin` and not later than `end`.

    Args:
        spans: What was in force.
        published: What was published.
        begin: Seconds since the epoch.
        end: Likewise.
        excused: Times whose slots may be missing.
    """
    spans = list(spans)
    counts = Counter((name, slot) for name, slot in published if begin < slot <= end)
    due = {
        slot
        for span in spans
        for slot in span.slots(max(begin, span.began.latest), min(end, span.ended.earliest))
        if not any(time.earliest <= slot[1] <= time.latest for time in excused)
    }
    allowed = {
        slot
        for span in spans
        for slot in span.slots(max(begin, span.began.earliest), min(end, span.ended.latest))
    }
    return Judgement(
        len(due),
        old=sorted(counts.keys() - allowed),
        lost=sorted(due - counts.keys()),
        doubled=sorted(slot for slot, count in counts.items() if count > 1),
    )
