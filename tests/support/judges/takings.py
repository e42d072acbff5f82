"""The judge of contenders: which anomalies a lock has let happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tests.support.processes.contenders import Taking

from . import fight
from .validity import boot_offset


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Counts of one run of contenders.

    Attributes:
        acquisitions: Locks that were had.
        overlaps: Pairs that were trusted at the same time.
        foreign_releases: Holders whose lock was over, and whose release let somebody in beside
            the next holder.
        late_writes: Writes after another holder had already written: nothing refused them. With a
            token: those that a register would accept.
        refused_writes: Such writes that a register refuses by their token; None: no token.
        token_faults: Tokens that are not above those before, or were had twice; None: no token.
    """

    acquisitions: int
    overlaps: int
    foreign_releases: int
    late_writes: int
    refused_writes: int | None
    token_faults: int | None

    @property
    def total(self) -> int:
        """All that must not happen."""
        return self.overlaps + self.foreign_releases + self.late_writes + (self.token_faults or 0)

    def row(self) -> dict[str, int | None]:
        """Return them by name."""
        return asdict(self)


def anomalies(takings: Sequence[Taking], deaths: Mapping[int, float]) -> Anomalies:
    """Count what went wrong.

    Args:
        takings: All of one lock.
        deaths: When which process was killed, monotonic seconds.
    """
    offset = boot_offset()
    takings = [
        replace(one, until=min(one.until, deaths.get(one.who, float("inf")) + offset))
        for one in takings
    ]
    has_token = bool(takings) and takings[0].token is not None
    holds = [
        fight.Hold(one.who, one.token or 0, one.asked_at, one.won_at, one.ended) for one in takings
    ]
    late = _late_writes(takings)
    refused = [one for one in late if _is_refused(one, takings)] if has_token else []
    faults = len(fight.disorders(holds)) + len(fight.twins(holds))
    return Anomalies(
        acquisitions=len(takings),
        overlaps=len(fight.overlaps(holds)),
        foreign_releases=_foreign_releases(takings),
        late_writes=len(late) - len(refused),
        refused_writes=len(refused) if has_token else None,
        token_faults=faults if has_token else None,
    )


def _late_writes(takings: Sequence[Taking]) -> list[Taking]:
    """Return the takings whose holder wrote after one who had the lock later had written."""
    return [
        late
        for late in takings
        if any(
            late.won_at < other.won_at and other.wrote_at < late.wrote_at < float("inf")
            for other in takings
        )
    ]


def _is_refused(late: Taking, takings: Sequence[Taking]) -> bool:
    return any(
        (other.token or 0) > (late.token or 0) and other.wrote_at < late.wrote_at
        for other in takings
    )


def _foreign_releases(takings: Sequence[Taking]) -> int:
    count = 0
    for late in takings:
        if late.until < late.released_at < float("inf"):
            beside = [
                (victim, third)
                for victim in takings
                for third in takings
                if victim.who != late.who
                and victim.won_at < late.released_at < third.won_at < victim.ended
                and third.won_at < late.released_at + 0.1
            ]
            count += bool(beside)
    return count
