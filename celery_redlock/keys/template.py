"""A format string over a task's parameters: `"{account_id}"`, `"{order[lines][0]}"`.

Read once, when the task is defined. It is not given to `str.format`, for what that shows depends
on the side: the producer may hold a tuple where the worker gets a list.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from celery_redlock.keys.canonical import as_received, is_plain, of_json_type

_NAME = re.compile(r"([^.\[\]]*)((?:\.[^.\[\]]+|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\[\]]+)\]")
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]{6,}")
"""Default text of an object. A user's own text may hold " at 0x1f"."""
_WIDEST = 200
"""Largest width of a field, in characters; a readable key is cut there."""
_CONVERSIONS: dict[str | None, Callable[[object], object]] = {"r": repr, "s": str, "a": ascii}


class LockKeyError(Exception):
    """A `lock_key` that is wrong, for every call or for one: the problem and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy


class Field(NamedTuple):
    """One `{…}`.

    Attributes:
        name: What stands before the conversion, for errors.
        parameter: Where it starts.
        steps: How it goes on: (attribute, "") or ("", index).
        conversion: "r", "s", "a" or None, as in `str.format`.
        spec: The format specification.
    """

    name: str
    parameter: str
    steps: tuple[tuple[str, str], ...]
    conversion: str | None
    spec: str

    def show(self, arguments: Mapping[str, object]) -> str:
        """Return the text of this field.

        Raises:
            LockKeyError: There is no such attribute or index, or it shows a memory address.
            Unencodable: It is a container with something in it that has no stable form.
        """
        value = arguments[self.parameter]
        try:
            for attribute, index in self.steps:
                # What a subclass adds, as the attributes of a str enum, the worker does not get.
                value = of_json_type(value)
                value = getattr(value, attribute) if attribute else _item(value, index)
            value = as_received(value, self.name)
            convert = _CONVERSIONS.get(self.conversion)
            text = format(convert(value) if convert else value, self.spec)
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            # What it says may hold the argument, so it is neither shown nor chained.
            raise self._misfit(type(exc).__name__) from None
        if not is_plain(value) and shows_address(text):
            raise self._misfit("its text holds a memory address")
        return text

    def _misfit(self, reason: str) -> LockKeyError:
        return LockKeyError(
            f"field {{{self.name}}} does not fit this call ({reason})",
            "name a part that is in every call; the worker sees what JSON leaves of an argument, "
            "so that needs an index into lists and dicts",
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A format string taken apart: literal text, each with the field that follows it, if any."""

    pieces: tuple[tuple[str, Field | None], ...]

    @property
    def parameters(self) -> list[str]:
        """The parameters that it names, in the order of its fields."""
        return [field.parameter for _, field in self.pieces if field]

    def fill(self, arguments: Mapping[str, object]) -> str:
        """Return the text for one call, the same in the producer and the worker.

        Raises:
            LockKeyError: A field does not fit.
            Unencodable: A field is a container with something in it that has no stable form.
        """
        return "".join(
            text + (field.show(arguments) if field else "") for text, field in self.pieces
        )


def template(text: str) -> Template:
    """Return `text` taken apart.

    Raises:
        LockKeyError: Not a format string, or one with a field that has no name.
    """
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as exc:
        raise LockKeyError(f"is not a format string: {exc}", "double a brace that is text") from exc
    return Template(
        tuple(
            (before, None if name is None else _field(name, spec or "", conversion))
            for before, name, spec, conversion in pieces
        )
    )


def shows_address(text: str) -> bool:
    """Return whether `text` shows an object by its address, which differs in every process.

    Args:
        text: What a function or an object made; of plain data it is just text.
    """
    return _ADDRESS.search(text) is not None


def _field(name: str, spec: str, conversion: str | None) -> Field:
    match = _NAME.fullmatch(name)
    if match is None or "{" in spec or not (conversion is None or conversion in _CONVERSIONS):
        raise LockKeyError(
            f"has the field {{{name}}}, which can't be read",
            'write it as "{parameter}", "{parameter.attribute}" or "{parameter[index]}"',
        )
    if any(int(number) > _WIDEST for number in re.findall(r"\d{1,9}", spec)):
        raise LockKeyError(
            f"has the field {{{name}}} with a width or precision over {_WIDEST}",
            "make it narrower: a key is cut there",
        )
    parameter, path = match.groups()
    if not parameter or parameter.isdecimal():
        raise LockKeyError(f"has the field {{{name}}} without a name", "name the parameter")
    return Field(name, parameter, tuple(_STEP.findall(path)), conversion, spec)


def _item(value: object, index: str) -> object:
    # JSON makes a dict's keys strings, a format string makes digits a number: take what is there.
    if isinstance(value, Mapping) and index in value:
        return value[index]
    return value[int(index) if index.isdecimal() else index]  # type: ignore[index]
