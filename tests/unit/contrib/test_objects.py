"""The guard for objects in a store: whose claim and whose write is refused."""

from __future__ import annotations

import hashlib
import io
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.contrib.guards import StaleToken, objects

OLD, NEW = 2**50, 2**50 + 1


class Refused(Exception):
    """An error of the store, with the status of its answer."""

    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class Store:
    """A client as boto3's, of a store with one bucket."""

    exceptions = SimpleNamespace(NoSuchKey=KeyError)

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.error: Exception | None = None

    def get_object(self, **of: Any) -> dict[str, Any]:
        assert of["Bucket"] == "bank"
        body = self.stored[of["Key"]]
        return {"Body": io.BytesIO(body), "ETag": _etag(body)}

    def put_object(self, **of: Any) -> dict[str, str]:
        assert of["Bucket"] == "bank"
        if self.error:
            raise self.error
        now = self.stored.get(of["Key"])
        is_new = of.get("IfNoneMatch") == "*" and now is None
        if not (is_new or (now and _etag(now) == of["IfMatch"])):
            raise Refused(412)
        self.stored[of["Key"]] = of["Body"]
        return {"ETag": _etag(of["Body"])}


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture
def store() -> Store:
    return Store()


def claim(store: Store, token: int | None) -> objects.ClaimedObject:
    return objects.claim(store, "bank", "balance", token)


def test_each_claim_reads_what_was_written_under_the_one_before(store: Store) -> None:
    first = claim(store, OLD)
    assert first.body == objects.content_of(store.stored["balance"]) == b""
    for body in (b"1000", b"1\n2\n"):
        first.write(body)
        assert first.body == body
        assert objects.content_of(store.stored["balance"]) == body
    assert claim(store, OLD).body == claim(store, NEW).body == b"1\n2\n"


def test_a_write_is_refused_once_a_newer_run_has_claimed(store: Store) -> None:
    old = claim(store, OLD)
    old.write(b"1000")
    new = claim(store, NEW)
    with pytest.raises(StaleToken) as caught:
        old.write(b"1001")
    assert (caught.value.resource, caught.value.token) == ("balance", OLD)
    assert old.body == b"1000"
    new.write(b"1010")
    with pytest.raises(StaleToken) as caught:
        claim(store, OLD)
    assert (caught.value.resource, caught.value.token) == ("balance", OLD)
    assert claim(store, NEW).body == b"1010"


@pytest.mark.parametrize("status", [409, 412])
def test_of_two_claims_at_once_one_is_refused(store: Store, status: int) -> None:
    store.error = Refused(status)
    with pytest.raises(StaleToken):
        claim(store, OLD)
    store.error = None
    claim(store, OLD)
    store.error = Refused(status)
    with pytest.raises(StaleToken):
        claim(store, NEW)


@pytest.mark.parametrize("error", [Refused(500), OSError("no route"), Refused(410)], ids=repr)
def test_any_other_error_of_the_store_is_raised_as_it_is(store: Store, error: Exception) -> None:
    store.error = error
    with pytest.raises(type(error)) as caught:
        claim(store, OLD)
    assert caught.value is error


def test_a_run_without_a_token_claims_no_object(store: Store) -> None:
    with pytest.raises(StaleToken, match="'balance' needs a fencing token"):
        claim(store, None)
    assert store.stored == {}


@pytest.mark.parametrize("content", [b"1000 EUR\n", b"1000", b"-1000\n", b"\n", b""])
def test_an_object_that_was_never_claimed_is_not_overwritten(store: Store, content: bytes) -> None:
    store.stored["balance"] = content
    with pytest.raises(ValueError, match="'balance' is there, but its first line is not a token"):
        claim(store, OLD)
    assert store.stored["balance"] == content
