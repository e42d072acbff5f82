"""Operators beside mutmut's, which drops no condition: each makes one small change of a rule.

Dropped are a clause of `and` and `or`, all but one argument of `max` and `min`, the condition of an
`if`, and a call. Numbers are multiplied by ten, constants of a module as well: mutmut adds one, in
functions only, which few tests of a time notice.

The words of a message are no rule: of mutmut's changes of a text, those of a sentence are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import libcst as cst
from mutmut.mutation import file_mutation
from mutmut.mutation.mutators import mutation_operators, operator_string

_SENTENCE = re.compile(r"\w[,;:]? \w")
"""Words with a space between them. No name and no command of this package has one."""


def dropped_clause(node: cst.BooleanOperation) -> Iterator[cst.BaseExpression]:
    """Yield each side of `and` and `or` alone."""
    for side in (node.left, node.right):
        yield side.with_changes(lpar=[*node.lpar, *side.lpar], rpar=[*side.rpar, *node.rpar])


def one_argument(node: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield each of the arguments of `max` or `min` alone."""
    is_choice = isinstance(node.func, cst.Name) and node.func.value in ("max", "min")
    if is_choice and len(node.args) > 1 and not any(arg.keyword or arg.star for arg in node.args):
        for arg in node.args:
            yield _in_parentheses(arg.value)


def decided_condition(node: cst.If | cst.CompIf) -> Iterator[cst.CSTNode]:
    """Yield the condition as one that is always, or never, true; it is still evaluated."""
    for operator, answer in ((cst.And(), "False"), (cst.Or(), "True")):
        test = cst.BooleanOperation(_in_parentheses(node.test), operator, cst.Name(answer))
        yield node.with_changes(test=test)


def tenfold_number(node: cst.Integer | cst.Float) -> Iterator[cst.BaseNumber]:
    """Yield ten times a number."""
    if node.evaluated_value:
        yield node.with_changes(value=repr(node.evaluated_value * 10))


def dropped_call(node: cst.Expr) -> Iterator[cst.Pass]:
    """Yield nothing to do in place of a call whose result is not used."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass(semicolon=node.semicolon)


def changed_text(node: cst.BaseString) -> Iterator[cst.BaseString]:
    """Yield mutmut's changes of a text, unless it is a sentence."""
    if not (isinstance(node, cst.SimpleString) and _SENTENCE.search(node.raw_value)):
        yield from operator_string(node)


OPERATORS: list[tuple[Any, Callable[[Any], Iterator[cst.CSTNode]]]] = [
    (cst.BooleanOperation, dropped_clause),
    (cst.Call, one_argument),
    (cst.If | cst.CompIf, decided_condition),
    (cst.Integer | cst.Float, tenfold_number),
    (cst.Expr, dropped_call),
]


def constants(code: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each number that a module's code sets, as they are written.

    mutmut changes functions only.
    """
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value, name = statement.value, statement.targets[0].id
            is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float)
            if is_number and ast.literal_eval(value):
                yield name, str(ast.get_source_segment(code, value))


def add_operators() -> None:
    """Have mutmut make the mutants of these operators as well, and none of sentences."""
    # mutmut has no other place for them.
    made_by: Any = file_mutation
    others = [one for one in mutation_operators if one[1] is not operator_string]
    made_by.mutation_operators = [*others, (cst.BaseString, changed_text), *OPERATORS]


def _in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    if node.lpar or isinstance(node, cst.Name | cst.Call | cst.Attribute | cst.Integer | cst.Float):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
