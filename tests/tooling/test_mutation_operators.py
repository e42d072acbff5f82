"""The operators of the mutation gate beside mutmut's: what they make of a rule."""

from __future__ import annotations

import pytest

pytest.importorskip("mutmut")

import libcst as cst
from mutmut.mutation import file_mutation
from mutmut.mutation.mutators import mutation_operators

from tools.mutation.operators import OPERATORS, add_operators, constants


def mutants(rule: str) -> list[str]:
    """Return the rule as each of the operators changes it."""
    module = cst.parse_module(rule)
    changed: list[str] = []

    class Visitor(cst.CSTVisitor):
        def on_visit(self, node: cst.CSTNode) -> bool:
            for kind, operator in OPERATORS:
                if isinstance(node, kind):
                    changed.extend(
                        module.deep_replace(node, one).code  # type: ignore[attr-defined]
                        for one in operator(node)
                    )
            return True

    module.visit(Visitor())
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
def test_an_operator_makes_these_changes(rule: str, changed: list[str]) -> None:
    assert mutants(rule) == changed


def test_the_releases_of_the_keeper_could_need_a_quorum_only() -> None:
    """The change that every test once passed with."""
    rule = "needed = max(self._quorum, len(channel.everyone()))"
    assert "needed = self._quorum" in mutants(rule)


def test_mutmut_makes_the_mutants_of_these_operators_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = "def least(a, b):\n    return max(a, b)\n"
    monkeypatch.setattr(file_mutation, "mutation_operators", mutation_operators)
    before = file_mutation.mutate_file_contents("rule.py", rule).mutant_names
    add_operators()
    after = file_mutation.mutate_file_contents("rule.py", rule)
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
    monkeypatch: pytest.MonkeyPatch, text: str, is_changed: bool
) -> None:
    monkeypatch.setattr(file_mutation, "mutation_operators", mutation_operators)
    add_operators()
    mutated = file_mutation.mutate_file_contents("rule.py", f"def rule():\n    tell({text!r})\n")
    assert ("XX" in mutated.code) is is_changed


def test_the_numbers_of_a_module_are_found_as_they_are_written() -> None:
    code = "A_S = 0.1\nB = 1_000\nC: int = 3\nD = 0\nE = 'e'\nF = True\nG = A_S * 2\n"
    assert list(constants(code)) == [("A_S", "0.1"), ("B", "1_000")]
