"""Labels: names of holders, stored on the nodes within bounds, whatever they are."""

from __future__ import annotations

import hashlib
import re

LABEL_BYTES = 512
"""Longest label in an owner. With the longest host, an owner is within its 1 KiB."""
_DIGITS = 32
_MARK = "…"
"""Stands before the digest of a text that was shortened."""
_LOOKS_SHORTENED = re.compile(rf"{_MARK}[0-9a-f]{{{_DIGITS}}}\Z")


def label_of(task_id: object) -> str:
    """Return the label of a task, or of another holder, as `task_of` finds it in an owner.

    Its id, unless that is longer than `LABEL_BYTES` or can't be encoded: then its beginning and a
    digest. Compare labels, not ids.
    """
    return bounded(text_of(task_id), LABEL_BYTES)


def text_of(name: object) -> str:
    """Return a holder's name as a plain `str`.

    Of a subclass, such as a str enum, it is the data, as in a message; it may format another text.
    """
    return str.__str__(name if isinstance(name, str) else str(name))


def bounded(text: str, most: int) -> str:
    r"""Return `text`, or a shorter one in its place: valid UTF-8 of at most `most` bytes.

    Two texts never get the same one: the one in its place ends with a digest of the whole text. It
    is for people to recognize; a lone surrogate is shown as ``\udc80``.
    """
    try:
        is_stored = len(text.encode()) <= most
    except UnicodeEncodeError:
        is_stored = False
    # A text that looks like another one's short form gets one of its own.
    if is_stored and not looks_shortened(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    end = f"{_MARK}{digest}"
    head = text.encode(errors="backslashreplace")[: most - len(end.encode())]
    return head.decode(errors="ignore") + end


def looks_shortened(text: str) -> bool:
    """Return whether a text ends as one that `bounded` has shortened does."""
    return _MARK in text and _LOOKS_SHORTENED.search(text) is not None
