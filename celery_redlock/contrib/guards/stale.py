"""The error of a stale writer, and the check of tokens."""

from __future__ import annotations

from celery_redlock.redlock.errors import RedlockError


class StaleToken(RedlockError):
    """A newer run has claimed the resource: this one must not write to it any more.

    Attributes:
        resource: Name of the resource.
        token: Token of the run that was refused; None: it ran without a lock.
    """

    def __init__(self, resource: str, token: int | None = None) -> None:
        super().__init__(resource, token)
        self.resource = resource
        self.token = token

    def __str__(self) -> str:
        if self.token is None:
            return f"not written: {self.resource!r} needs a fencing token, and this run has none"
        return (
            f"not written: {self.resource!r} was claimed by a newer run than that of {self.token}"
        )


def valid_token(resource: str, token: int | None) -> int:
    """Return `token`.

    Raises:
        StaleToken: It is None, as in a run without a lock.
        TypeError: It is of another type: a database may sort that above every number.
    """
    if token is None:
        raise StaleToken(resource)
    if type(token) is not int:
        raise TypeError(f"the token for {resource!r} must be an int, got {token!r}")
    return token
