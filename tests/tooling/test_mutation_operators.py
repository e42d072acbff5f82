"""The operators of the mutation gate beside mutmut's: what they make of a rule."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def operators() -> Any:
    """`tools.mutation.operators`: imported here, as each process that collects tests would do it.

    With mutmut and libcst it takes a fifth of the time in which all the tests are collected.
    """
    pytest.importorskip("mutmut")
    return pytest.importorskip("tools.mutation.operators")


@pytest.fixture
def mutmut(operators: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return mutmut's module with its own operators only, to be added to."""
    monkeypatch.setattr(operators.file_mutation, "mutation_operators", operators.mutation_operators)
    return operators.file_mutation


def mutants(operators: Any, rule: str) -> list[str]:
    """Return the rule as each of the operators changes it."""
    module = operators.cst.parse_module(rule)
    changed: list[str] = []

    def on_visit(_: object, node: object) -> bool:
        for kind, operator in operators.OPERATORS:
            if isinstance(node, kind):
                changed.extend(module.deep_replace(node, one).code for one in operator(node))
        return True

    module.visit(type("Visitor", (operators.cst.CSTVisitor,), {"on_visit": on_visit})())
    return changed


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("x = a and b", ["x = a", "x = b"]),
        ("x = not (a or b)", ["x = not (a)", "x = not (b)"]),
        ("x = a or b or c", ["x = a or b", "x = c", "x = a or c", "x = b or c"]),
        ("x = max(a, b + c)", ["x = a", "x = (b + c)"]),
        ("x = max(a, default=b)", []),
        ("x = min(*a, b)", []),
        ("x = sorted(a, b)", []),
        ("x = 5", ["x = 50"]),
        ("x = 0.5", ["x = 5.0"]),
        ("x = 0", []),
        ("call(a)", ["pass"]),
        ("await call", []),
        ("[x for x in a if x]", ["[x for x in a if x and False]", "[x for x in a if x or True]"]),
        ("[x for x in a if x > y]",
         ["[x for x in a if (x > y) and False]", "[x for x in a if (x > y) or True]"]),
        ("if (a == b):\n    return c",
         ["if (a == b) and False:\n    return c", "if (a == b) or True:\n    return c"]),
    ],
)  # fmt: skip
def test_an_operator_makes_these_changes(operators: Any, rule: str, changed: list[str]) -> None:
    assert mutants(operators, rule) == changed


def test_the_releases_of_the_keeper_could_need_a_quorum_only(operators: Any) -> None:
    """The change that every test once passed with."""
    rule = "needed = max(self._quorum, len(channel.everyone()))"
    assert "needed = self._quorum" in mutants(operators, rule)


def test_mutmut_makes_the_mutants_of_these_operators_too(operators: Any, mutmut: Any) -> None:
    rule = "def least(a, b):\n    return max(a, b)\n"
    before = mutmut.mutate_file_contents("rule.py", rule).mutant_names
    operators.add_operators()
    after = mutmut.mutate_file_contents("rule.py", rule)
    assert len(after.mutant_names) == len(before) + 2
    assert "return b\n" in after.code


@pytest.mark.parametrize(
    ("text", "is_changed"),
    [
        ("redlock_ttl", True),
        ("redis://", True),
        ("", True),
        (" \t\r\n,", True),
        ("is unknown", False),
        ("is out of range; give seconds", False),
    ],
)
def test_a_name_is_changed_and_a_sentence_is_not(
    operators: Any, mutmut: Any, text: str, is_changed: bool
) -> None:
    operators.add_operators()
    mutated = mutmut.mutate_file_contents("rule.py", f"def rule():\n    tell({text!r})\n")
    assert ("XX" in mutated.code) is is_changed


def test_the_numbers_of_a_module_are_found_as_they_are_written(operators: Any) -> None:
    code = "A_S = 0.1\nB = 1_000\nC: int = 3\nD = 0\nE = 'e'\nF = True\nG = A_S * 2\n"
    assert list(operators.constants(code)) == [("A_S", "0.1"), ("B", "1_000")]
