"""The rule that derives the lock key of a task's calls.

A `KeyRule` is made once, when the task is defined, so that a wrong `lock_key` is an error there
and not at the first call. The prefix and the braces of a Redis hash tag are added later.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import BoundArguments, Parameter, Signature
from typing import NamedTuple

from celery_redlock.keys.canonical import Plain, Unencodable, digest, plain
from celery_redlock.keys.signature import (
    POSITIONAL,
    TOKEN_PARAMETER,
    bind,
    bindable_signature,
    binder,
    declares_token,
    decorators_signature,
    signature_of,
    token_is_reachable,
)
from celery_redlock.keys.template import LockKeyError, Template, shows_address, template
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.suggestion import closest

_LONGEST = 200
"""Characters of a readable key. A longer key is cut there and gets a digest."""

_UNSAFE = re.compile("[{}%\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that are escaped. Braces would end the hash tag early, control characters a line of
the log; with the percent sign escaped, no two texts are escaped alike."""


class KeyRule(NamedTuple):
    """Rule that derives the lock key of a task's calls. Made by `key_rule`.

    Attributes:
        task_name: The task's name.
        signature: The parameters that callers may pass.
        lock_key: None for all arguments; names of parameters; a format string taken apart; or the
            user's function.
        takes_token: Whether the body declares `fencing_token`.
        arguments_of: Binds a call; see `binder`.
        decorators: The parameters of the body's outermost decorator, if it has its own.
    """

    task_name: str
    signature: Signature
    lock_key: tuple[str, ...] | Template | Callable[..., object] | None
    takes_token: bool
    arguments_of: Callable[..., dict[str, object]]
    decorators: Signature | None = None

    def key_for(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return the lock key of one call, the same for calls that bind alike.

        `<task>:<digest>` for all or listed arguments, `<task>` for `lock_key=[]`, and
        `<task>:<text>` for a format string and for a function that returns str.

        Args:
            args: Positional arguments, without `self`.
            kwargs: Keyword arguments.

        Raises:
            TypeError: The task can't be called with these arguments.
            ConfigurationError: The arguments have no stable form, or `lock_key` does not fit them.
        """
        bound = self._bind(args, kwargs)
        name = _prefix(self.task_name)
        try:
            return name if self.lock_key == () else f"{name}:{self._chosen(bound)}"
        except Unencodable as exc:
            raise self._error(
                f"can't derive the lock key: {exc.where} {exc.problem}",
                "choose the identifying arguments with lock_key, e.g. a list of parameter names, "
                "or teach JSON the type with kombu.utils.json.register_type",
            ) from None
        except LockKeyError as exc:
            raise self._error(f"lock_key's {exc.problem}", exc.remedy) from None

    def accepts(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Return whether the task can be called with these arguments."""
        try:
            self._bind(args, kwargs)
        except TypeError:
            return False
        return True

    def refuse_token(self, kwargs: Mapping[str, object]) -> None:
        """Refuse a token from the caller: a body with **kwargs would accept it, and get it twice.

        Raises:
            TypeError: It is among the arguments, and the body gets the token of its lock.
        """
        if self.takes_token and TOKEN_PARAMETER in kwargs:
            raise TypeError(
                f"task {self.task_name!r} got an unexpected keyword argument {TOKEN_PARAMETER!r}; "
                "leave it out: the body gets the token of its lock"
            )

    def _bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> BoundArguments:
        self.refuse_token(kwargs)
        try:
            return BoundArguments(self.signature, self.arguments_of(*args, **kwargs))
        except TypeError:
            pass
        # Raises with the reason, unless a decorator takes the arguments.
        bound = bind(self.signature, self.decorators, args, kwargs)
        bound.apply_defaults()
        return bound

    def _chosen(self, bound: BoundArguments) -> str:
        lock_key, arguments = self.lock_key, bound.arguments
        if lock_key is None:
            return digest(self._plain(arguments))
        if callable(lock_key):
            return self._returned(lock_key(*bound.args, **bound.kwargs))
        for name in lock_key.parameters if isinstance(lock_key, Template) else lock_key:
            if name not in arguments:
                raise self._error(
                    f"lock_key names {name!r}, which this call leaves to a decorator of the task",
                    "name what callers pass",
                )
        if isinstance(lock_key, Template):
            return _readable(lock_key.fill(arguments))
        return digest(self._plain({name: arguments[name] for name in lock_key}))

    def _plain(self, arguments: Mapping[str, object]) -> dict[str, Plain]:
        stable = {}
        for name, value in arguments.items():
            try:
                stable[name] = plain(value, name)
            except Unencodable:
                # No message carries such a default, so this call has left the parameter out.
                if value is not self.signature.parameters[name].default:
                    raise
        return stable

    def _returned(self, value: object) -> str:
        if value is None:
            raise self._error(
                "lock_key returned None, so all runs would share one lock",
                "return a value that identifies the run, or use lock_key=[] if one lock is meant",
            )
        if not isinstance(value, str):
            return digest(plain(value, "what lock_key returned"))
        if shows_address(value):
            raise self._error(
                "lock_key returned text with a memory address, which differs in every process",
                "return an attribute that identifies the object",
            )
        return _readable(str.__str__(value))

    def _error(self, problem: str, remedy: str) -> ConfigurationError:
        return _error(self.task_name, problem, remedy, self.signature)


def key_rule(task_name: str, run: Callable[..., object], lock_key: object) -> KeyRule:
    """Return the key rule of a task, after every check that needs no call.

    Args:
        task_name: The task's name.
        run: Its body, a bound method or a plain function.
        lock_key: None for all arguments; a format string over parameters ("{account.id}"); a list
            of parameter names, [] for one lock for the whole task; or a function, called as the
            task is with its defaults filled in, that returns str or anything JSON can write.

    Raises:
        ConfigurationError: `lock_key` does not fit the task, or `fencing_token` is declared where
            it can't be passed by name.
    """
    signature, takes_token = bindable_signature(run), declares_token(run)
    if takes_token and not token_is_reachable(run):
        raise _error(
            task_name,
            "fencing_token is passed by name, but a positional argument would land in it",
            "declare it last, after a `*`",
            signature,
        )
    try:
        checked = _checked(lock_key, signature)
    except LockKeyError as exc:
        problem = f"lock_key={lock_key!r} {exc.problem}"
        raise _error(task_name, problem, exc.remedy, signature) from exc.__cause__
    return KeyRule(
        task_name, signature, checked, takes_token, binder(signature), decorators_signature(run),
    )  # fmt: skip


def _checked(
    lock_key: object, signature: Signature
) -> tuple[str, ...] | Template | Callable[..., object] | None:
    if lock_key is None:
        return None
    if isinstance(lock_key, str):
        return _checked_template(lock_key, signature)
    if isinstance(lock_key, (list, tuple)):
        for name in lock_key:
            if not isinstance(name, str):
                raise LockKeyError(f"lists {name!r}, which is not a string", "list parameter names")
            _check_name(name, signature)
        return tuple(dict.fromkeys(map(str.__str__, lock_key)))
    if callable(lock_key):
        _check_call(lock_key, signature)
        return lock_key
    remedy = "give a format string, a list of parameter names, or a function"
    raise LockKeyError(f"is of type {type(lock_key).__name__}", remedy)


def _checked_template(text: str, signature: Signature) -> Template:
    checked = template(text)
    if not checked.parameters:
        if text in signature.parameters:
            raise LockKeyError("names no parameter", f'did you mean "{{{text}}}"?')
        raise LockKeyError(
            "names no parameter",
            "use lock_key=[] for one lock for the whole task, or name parameters in braces",
        )
    for name in checked.parameters:
        _check_name(name, signature)
    return checked


def _check_name(name: str, signature: Signature) -> None:
    if name not in signature.parameters:
        close = closest(name, signature.parameters)
        remedy = f"did you mean {close!r}?" if close else "name a parameter of the task"
        raise LockKeyError(f"names the unknown parameter {name!r}", remedy)


def _check_call(function: Callable[..., object], signature: Signature) -> None:
    try:
        accepted = signature_of(function)
    except (TypeError, ValueError):
        return  # a builtin need not tell what it takes
    parameters = signature.parameters.values()
    # Variadic ones have stars in their text.
    taken = [str(one).partition(":")[0] for one in accepted.parameters.values()]
    if taken == ["args", "kwargs"] != list(signature.parameters):
        raise LockKeyError(
            "takes args and kwargs as celery-heimdall's key does, but is called as the task is",
            "give it the task's own parameters, or *args and **kwargs",
        )
    try:
        accepted.bind(
            *[None for p in parameters if p.kind in POSITIONAL],
            **{p.name: None for p in parameters if p.kind is Parameter.KEYWORD_ONLY},
        )
    except TypeError as exc:
        raise LockKeyError(
            f"can't be called as the task is ({exc})",
            "give it the task's own parameters, or *args and **kwargs",
        ) from exc


def _error(task_name: str, problem: str, remedy: str, signature: Signature) -> ConfigurationError:
    names = ", ".join(signature.parameters) or "none"
    return ConfigurationError(f"task {task_name!r}: {problem}; {remedy} (parameters: {names})")


def is_key_of(key: str, task_name: str) -> bool:
    """Return whether `key` can be the key of a lock of this task."""
    prefix = _prefix(task_name)
    return key == prefix or key.startswith(f"{prefix}:")


# The cache is bounded, since a name may come from a message of a task that is unknown here.
@functools.lru_cache(maxsize=1024)
def _prefix(task_name: str) -> str:
    return _escaped(task_name).replace(":", "%3A")


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda unsafe: _percent(unsafe[0]), text)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _readable(text: str) -> str:
    safe = _escaped(text)
    return safe if len(safe) <= _LONGEST else f"{safe[:_LONGEST]}~{digest(safe)}"
