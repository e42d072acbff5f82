"""What the body of a task takes, and from whom: its callers, Celery, or the lock."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from inspect import Parameter, Signature

TOKEN_PARAMETER = "fencing_token"  # noqa: S105 - a parameter's name
"""A parameter of this name receives the token. Callers don't pass it, so it is in no key."""

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def signature_of(function: Callable[..., object]) -> Signature:
    """Return the signature of `function`, without evaluating its annotations.

    Raises:
        TypeError, ValueError: It does not tell, as some builtins.
    """
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - new in Python 3.14

        # Evaluating would fail on names that are imported for a type checker only.
        return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(function)


def bindable_signature(run: Callable[..., object]) -> Signature:
    """Return what callers may pass: the body's signature without `self` and `fencing_token`.

    Args:
        run: The task's body, a bound method or a plain function. Decorators that set `__wrapped__`
            are looked through.
    """
    signature = signature_of(run)
    parameters = signature.parameters.values()
    return signature.replace(parameters=[p for p in parameters if p.name != TOKEN_PARAMETER])


def accepts_token(run: Callable[..., object]) -> bool:
    """Return whether the body has a parameter `fencing_token` that can be passed by name."""
    parameter = signature_of(run).parameters.get(TOKEN_PARAMETER)
    return parameter is not None and parameter.kind in _BY_NAME


def token_is_reachable(run: Callable[..., object]) -> bool:
    """Return whether a declared `fencing_token` can be passed by name beside all other arguments.

    It can't before a positional parameter, nor as a positional-only, `*` or `**` parameter.
    """
    parameters = signature_of(run).parameters
    if TOKEN_PARAMETER not in parameters:
        return True
    names = list(parameters)
    after = names[names.index(TOKEN_PARAMETER) + 1 :]
    taken_by_position = (*POSITIONAL, Parameter.VAR_POSITIONAL)
    return accepts_token(run) and (
        parameters[TOKEN_PARAMETER].kind is Parameter.KEYWORD_ONLY
        or not any(parameters[name].kind in taken_by_position for name in after)
    )
