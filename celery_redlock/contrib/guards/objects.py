"""Guard for objects in a store with conditional writes, as S3 has.

The first line of a guarded object is the token that claimed it; its content follows. Metadata would
not do: an ETag stays the same when only metadata changes, and would let a stale writer pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .stale import StaleToken, valid_token

_CHANGED = (409, 412)
"""The object was written since, or is being written."""


@dataclass(slots=True)
class ClaimedObject:
    """Object that a run has claimed.

    Attributes:
        client: S3 client of boto3.
        bucket: Name of the bucket.
        key: Key of the object.
        token: Fencing token of the run.
        body: Content when it was claimed; b'' for a new object.
        etag: Version that was written last by this run.
    """

    client: Any
    bucket: str
    key: str
    token: int
    body: bytes = b""
    etag: str = ""

    def write(self, body: bytes) -> None:
        """Write the object if nobody has claimed or written it since.

        Raises:
            StaleToken: A newer run has: nothing was written.
        """
        self.etag = _put(self, body, IfMatch=self.etag)
        self.body = body


def claim(client: Any, bucket: str, key: str, token: int | None) -> ClaimedObject:
    """Claim an object for this run, and return it with its content.

    The token is written into its first line, on the condition that nobody has written it meanwhile.

    Args:
        client: S3 client of boto3; the store must support If-Match and If-None-Match on writes.
        bucket: Name of the bucket.
        key: Key of the object.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has claimed it, another one is claiming it, or `token` is None.
        ValueError: The object is there, but its first line is not a token.
    """
    one = ClaimedObject(client, bucket, key, valid_token(key, token))
    try:
        found = client.get_object(Bucket=bucket, Key=key)
    except client.exceptions.NoSuchKey:
        one.etag = _put(one, one.body, IfNoneMatch="*")
        return one
    fence, end, one.body = found["Body"].read().partition(b"\n")
    if not (end and fence.isdigit()):
        raise ValueError(f"{key!r} is there, but its first line is not a token of a claim")
    if int(fence) > one.token:
        raise StaleToken(key, token)
    one.etag = _put(one, one.body, IfMatch=found["ETag"])
    return one


def content_of(stored: bytes) -> bytes:
    """Return the content of a guarded object, without the line of its token.

    Args:
        stored: The whole object, as a reader without a claim gets it.
    """
    return stored.partition(b"\n")[2]


def _put(one: ClaimedObject, body: bytes, **condition: str) -> str:
    try:
        written = one.client.put_object(
            Bucket=one.bucket, Key=one.key, Body=b"%d\n" % one.token + body, **condition
        )
    except Exception as error:
        said = getattr(error, "response", {}).get("ResponseMetadata", {})
        if said.get("HTTPStatusCode") in _CHANGED:
            raise StaleToken(one.key, one.token) from error
        raise
    return str(written["ETag"])
