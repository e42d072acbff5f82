"""Conflicts per second, as workers announce them in Celery's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .incidents import NOT_CONNECTED_YET, Incidents

if TYPE_CHECKING:
    from typing_extensions import Self

_WITHOUT_APP = "unknown without an app, at whose broker workers announce them"
_NOT_YET = "not measured yet"


class ConflictRate:
    """Conflicts per second since the last look; received while it is entered.

    Args:
        app: The app whose events to receive; None: the rate is unknown.
    """

    def __init__(self, app: Any) -> None:
        self._incidents = None if app is None else Incidents(app)
        self._last: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if self._incidents:
            self._incidents.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._incidents:
            self._incidents.stop()

    def read(self, now: float) -> float | str:
        """Return the conflicts per second since the last call, or the reason why it is unknown.

        Args:
            now: Time, seconds.
        """
        if self._incidents is None:
            return _WITHOUT_APP
        if (problem := self._incidents.problem) is not None:
            self._last = None
            return _NOT_YET if problem == NOT_CONNECTED_YET else f"unknown: {problem}"
        before, self._last = self._last, (now, self._incidents.conflicts)
        if before is None or now <= before[0]:
            return _NOT_YET
        return (self._last[1] - before[1]) / (now - before[0])
