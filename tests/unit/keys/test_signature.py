"""Parameters of a body: what callers may pass, and how a call is bound to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, Signature, _ParameterKind
from typing import Any

import pytest
from celery import Celery
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_redlock.keys import key_rule
from celery_redlock.keys.signature import bindable_signature, binder
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.calls import anything, body, name


def test_a_method_and_a_function_bind_the_same_arguments() -> None:
    class Task:
        def run(self, a: int, b: int = 2, *, c: object = None) -> None: ...

    assert name(None, 1, run=Task().run) == name(None, 1)


def test_a_decorated_body_is_seen_through_its_wrapper() -> None:
    @functools.wraps(body)
    def wrapper(*args: object, **kwargs: object) -> None: ...

    assert bindable_signature(wrapper) == bindable_signature(body)


def test_a_decorated_method_is_seen_through_its_wrapper() -> None:
    class Task:
        def bare(self, a: int, b: int = 2, *, c: object = None) -> None: ...

        @functools.wraps(bare)
        def run(self, *args: object, **kwargs: object) -> None: ...

    class Delegating:
        @functools.wraps(Task().bare)
        def run(self, *args: object, **kwargs: object) -> None: ...

    for run in (Task().run, Delegating().run):
        assert bindable_signature(run) == bindable_signature(Task().bare)
        assert name(None, 1, run=run) == name(None, 1)


def test_a_decorator_may_add_and_withhold_the_bodys_arguments() -> None:
    def with_session(a: object, session: object, mode: object = 2) -> None: ...

    @functools.wraps(with_session)
    def run(*args: object, **kwargs: object) -> None: ...

    assert name("{a}", 7, run=run) == name("{a}", a=7, run=run) == "proj.sync:7"
    assert name(None, 7, run=run) == name(None, a=7, run=run) != name(None, 8, run=run)
    assert name(None, 7, run=run) == name(None, 7, run=run, mode=2)
    assert name(None, 7, 1, 2, 3, run=run) != name(None, 7, 1, 2, 4, run=run)
    assert name(None, 7, run=run, trace=1) != name(None, 7, run=run, trace=2)
    for lock_key in ("{a}{session}", ["a", "session"]):
        with pytest.raises(
            ConfigurationError, match=r"'session', which this call leaves to .*; name what callers"
        ):
            name(lock_key, 7, run=run)


def test_a_decorators_own_parameters_are_what_callers_pass() -> None:
    @functools.wraps(body)
    def wrapper(number: int) -> None: ...

    assert list(bindable_signature(wrapper).parameters) == ["number"]
    assert name("{number}", 7, run=wrapper) == name("{number}", number=7, run=wrapper)


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (OSError,)}])
def test_bound_and_unbound_celery_tasks_have_one_key(options: dict[str, Any]) -> None:
    app = Celery("proj", set_as_current=False)

    @app.task(bind=True, shared=False, **options)
    def bound(self: object, a: int, b: int = 2, *, c: object = None) -> None: ...

    @app.task(shared=False, **options)
    def unbound(a: int, b: int = 2, *, c: object = None) -> None: ...

    assert name(None, 1, run=bound.run) == name(None, a=1, b=2, run=unbound.run)


def with_token(a: int, *, fencing_token: int) -> None: ...


def with_optional_token(a: int, fencing_token: int | None = None) -> None: ...


def with_token_and_more(a: int, *, fencing_token: int, **more: object) -> None: ...


def token_first(fencing_token: int, a: int) -> None: ...


def token_positional(a: int, fencing_token: int, /) -> None: ...


def token_before_star(a: int, fencing_token: int, *more: object) -> None: ...


def token_star(a: int, *fencing_token: int) -> None: ...


def token_double_star(a: int, **fencing_token: int) -> None: ...


@pytest.mark.parametrize("run", [with_token, with_optional_token, with_token_and_more])
def test_the_token_is_no_part_of_the_call(run: Callable[..., object]) -> None:
    assert key_rule("t", run, "{a}").takes_token
    assert "fencing_token" not in bindable_signature(run).parameters
    assert key_rule("t", run, "{a}").key_for([1], {}) == "t:1"


@pytest.mark.parametrize("run", [with_token, with_optional_token, with_token_and_more])
def test_a_caller_may_not_pass_the_token(run: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'fencing_token'"):
        key_rule("t", run, None).key_for([1], {"fencing_token": 5})


@pytest.mark.parametrize("run", [body, anything])
def test_a_body_that_declares_no_token_takes_none(run: Callable[..., object]) -> None:
    assert not key_rule("t", run, None).takes_token


def test_a_body_without_the_token_may_be_given_its_name() -> None:
    assert name(None, run=anything, fencing_token=5) != name(None, run=anything, fencing_token=6)


@pytest.mark.parametrize(
    "run", [token_first, token_positional, token_before_star, token_star, token_double_star]
)
def test_a_token_that_an_argument_could_land_in_is_refused(run: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match=r"task 't': fencing_token.*after a `\*`"):
        key_rule("t", run, None)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([], {}), ([1, 2, 3], {}), ([1], {"a": 1}), ([1], {"d": 1})],
)
@pytest.mark.parametrize("lock_key", [None, [], ["a"], "{a}", lambda *args, **kwargs: "x"])
def test_a_wrong_call_is_the_type_error_of_the_signature(
    lock_key: object, args: list[object], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError) as expected:
        bindable_signature(body).bind(*args, **kwargs)

    with pytest.raises(TypeError) as caught:
        name(lock_key, *args, **kwargs)

    assert caught.value.args == expected.value.args
    assert "lambda" not in str(caught.value.__context__)


DEFAULTS = st.sampled_from([[], "'quoted'", object(), None, 1.5])


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    """Draw a signature with parameters of any kind, some of them with the names of builtins."""
    names = draw(st.permutations(["a", "defaults", "self", "list", "ä", "args"]))
    kinds = sorted(draw(st.lists(st.sampled_from(list(_ParameterKind)), max_size=6)))
    parameters: list[Parameter] = []
    has_default = False
    for parameter_name, kind in zip(names, kinds, strict=False):
        is_starred = kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        if is_starred and any(p.kind is kind for p in parameters):
            continue
        is_by_position = kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
        has_default = draw(st.booleans()) or (has_default and is_by_position)
        default = draw(DEFAULTS) if has_default and not is_starred else Parameter.empty
        parameters.append(Parameter(parameter_name, kind, default=default, annotation="Missing"))
    return Signature(parameters, return_annotation="Missing")


@given(signatures(), st.lists(st.integers(), max_size=4), st.data())
def test_the_interpreter_binds_a_call_as_its_signature_does(
    signature: Signature, args: list[int], data: st.DataObject
) -> None:
    known = st.sampled_from([*signature.parameters, "unknown"])
    kwargs = data.draw(st.dictionaries(known, st.integers(), max_size=3))
    # There the interpreter is right: `**kwargs` takes it. Signatures of Python 3.11 refuse it.
    assume(
        not any(
            p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values() if p.name in kwargs
        )
    )
    arguments_of = binder(signature)

    try:
        expected = signature.bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            arguments_of(*args, **kwargs)
    else:
        expected.apply_defaults()
        assert arguments_of(*args, **kwargs) == expected.arguments


def test_a_positional_only_name_may_be_among_the_keywords() -> None:
    def run(a: int, /, **others: int) -> None: ...

    assert name("{a}", 1, run=run, a=2) == "proj.sync:1"
    assert name(None, 1, run=run, a=2) != name(None, 1, run=run, a=3)
