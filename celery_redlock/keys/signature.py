"""Parameters of a task's body, and who passes them: callers, Celery, or the lock."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import BoundArguments, Parameter, Signature
from types import MethodType
from typing import Any

TOKEN_PARAMETER = "fencing_token"  # noqa: S105 - a parameter's name
"""A parameter of this name receives the token. Callers don't pass it, so it is in no key."""

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_UNEVALUATED: dict[str, Any] = {}
"""Evaluating annotations would fail on names that are imported for a type checker only."""
if sys.version_info >= (3, 14):
    import annotationlib

    _UNEVALUATED["annotation_format"] = annotationlib.Format.STRING
_ANY_NUMBER = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def signature_of(function: Callable[..., object]) -> Signature:
    """Return the signature of `function`, without evaluating its annotations.

    Decorators that set `__wrapped__` are looked through if they pass on what they are given, as far
    as their own parameters tell.

    Raises:
        TypeError, ValueError: It does not tell, as some builtins.
    """
    signature = _own_signature(function)
    wrapped: Callable[..., object] | None = getattr(function, "__wrapped__", None)
    passes_on = any(p.kind in _ANY_NUMBER for p in signature.parameters.values())
    if wrapped is None or not passes_on:
        return signature
    if isinstance(function, MethodType) and not isinstance(wrapped, MethodType):
        wrapped = MethodType(wrapped, function.__self__)
    return signature_of(wrapped)


def _own_signature(function: Callable[..., object]) -> Signature:
    return inspect.signature(function, follow_wrapped=False, **_UNEVALUATED)


def bindable_signature(run: Callable[..., object]) -> Signature:
    """Return what callers may pass: the body's signature without `self` and `fencing_token`.

    Args:
        run: The task's body, a bound method or a plain function.
    """
    signature = signature_of(run)
    parameters = signature.parameters.values()
    return signature.replace(parameters=[p for p in parameters if p.name != TOKEN_PARAMETER])


def decorators_signature(run: Callable[..., object]) -> Signature | None:
    """Return what the outermost decorator of a body takes, if it was looked through."""
    own = _own_signature(run)
    return None if own == signature_of(run) else own


def bind(
    signature: Signature,
    decorators: Signature | None,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> BoundArguments:
    """Return a call's arguments by the names of the body's parameters, as far as can be told.

    Args:
        signature: What callers may pass, if no decorator changes it.
        decorators: What the outermost decorator takes; None if there is none.
        args: Positional arguments, without `self`.
        kwargs: Keyword arguments.

    Raises:
        TypeError: The task can't be called with these arguments.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        if decorators is None:
            raise
    # A decorator may pass arguments of its own, and keep some from the body.
    try:
        return signature.bind_partial(*args, **kwargs)
    except TypeError:
        return decorators.bind(*args, **kwargs)


class _Source(str):
    """Text that stands in an expression as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def binder(signature: Signature) -> Callable[..., dict[str, object]]:
    """Return a function of this signature that returns its arguments by name, defaults filled in.

    It is the interpreter that binds then, several times faster than `Signature.bind`.
    """
    parameters = [
        p.replace(
            annotation=Parameter.empty,
            default=p.default if p.default is Parameter.empty else _Source(f"defaults[{p.name!r}]"),
        )
        for p in signature.parameters.values()
    ]
    head = str(Signature(parameters)).removeprefix("(").removesuffix(")")
    body = ", ".join(f"{p.name!r}: {p.name}" for p in parameters)
    defaults = {p.name: p.default for p in signature.parameters.values()}
    made: Callable[..., dict[str, object]] = eval(  # noqa: S307  # of identifiers only
        f"lambda {head}: {{{body}}}", {"defaults": defaults}
    )
    return made


def declares_token(run: Callable[..., object]) -> bool:
    """Return whether the body has a parameter `fencing_token`."""
    return TOKEN_PARAMETER in signature_of(run).parameters


def token_is_reachable(run: Callable[..., object]) -> bool:
    """Return whether the declared `fencing_token` can be passed by name beside all other arguments.

    It can't before a positional parameter, nor as a positional-only, `*` or `**` parameter.
    """
    parameters = list(signature_of(run).parameters.values())
    names = [parameter.name for parameter in parameters]
    token, *after = parameters[names.index(TOKEN_PARAMETER) :]
    taken_by_position = (*POSITIONAL, Parameter.VAR_POSITIONAL)
    return token.kind is Parameter.KEYWORD_ONLY or (
        token.kind is Parameter.POSITIONAL_OR_KEYWORD
        and not any(parameter.kind in taken_by_position for parameter in after)
    )
