"""The page docs/reference/types.md: `python -m tools.docs.typing_page` runs the type checkers.

All of it comes from tests/typing/public_api.py: there an `assert_type` demands a type, and a
`type: ignore` an error.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tests.support.root import ROOT
from tests.typing.checkers import PUBLIC_API, mypy_errors, pyright_errors

PAGE = ROOT / "docs" / "reference" / "types.md"
_IGNORED = re.compile(r"  # type: ignore\[.*\]")
_WORDING = re.compile(r"^(  (?:mypy|pyright):).*\n(?:\1.*\n)*", re.MULTILINE)
# The tasks that the lines of the page call.
_DEFINED = ("bare", "TypedReport", "keeps", "CompanyTask", "bound")
_PAGE = """\
# What type checkers see

A task keeps the parameters and the result of its function.
Type checkers and editors check calls, `delay`, `s` and results, options of a task and their values.
For Celery's own types install `celery-types`.

All of this page comes from `tests/typing/public_api.py`, by mypy {mypy} and pyright {pyright}.
Both are strict. A test runs them and compares which lines they reject.
Other versions of them word their errors differently.

These tasks are called below:

<!-- not run: an excerpt for type checkers -->
```python
{defined}
```

## Right

```text
{right}
```

## Wrong

The first line of each error:

```text
{wrong}
```
"""


def documentation() -> str:
    """Return the page.

    Raises:
        ValueError: The checkers disagree about which lines are wrong.
    """
    source = PUBLIC_API.read_text(encoding="utf-8")
    wrong = {
        number: _IGNORED.sub("", line).strip()
        for number, line in enumerate(source.splitlines(), 1)
        if _IGNORED.search(line)
    }
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "without_ignores.py"
        copy.write_text(_IGNORED.sub("", source), encoding="utf-8")
        errors = {"mypy": mypy_errors(copy), "pyright": pyright_errors(copy)}
    for checker, found in errors.items():
        if found.keys() != wrong.keys():
            raise ValueError(f"{checker} finds other lines: {found.keys() ^ wrong.keys()}")
    return _PAGE.format(
        mypy=".".join(metadata.version("mypy").split(".")[:2]),
        pyright=metadata.version("pyright"),
        defined="\n\n\n".join(_definitions(source)),
        right="\n".join(f"{what:42} {of}" for what, of in _asserted(source)),
        wrong="\n\n".join(_said(number, code, errors) for number, code in wrong.items()),
    )


def verdicts(page: str) -> str:
    """Return a page without what differs from one version of a checker to the next.

    What stays: the types, and which checker rejects which line.
    """
    without_versions = re.sub(r"(mypy|pyright) [\d.]+\d", r"\1", page)
    return _WORDING.sub(r"\1\n", without_versions)


def _definitions(source: str) -> list[str]:
    lines, found = source.splitlines(), dict[str, str]()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min(part.lineno for part in (node, *node.decorator_list))
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return [found[name] for name in _DEFINED]


def _asserted(source: str) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="assert_type"), args=[ast.Call() | ast.Attribute() as what, of]
            ):
                found.append((ast.unparse(what).replace("'", '"'), ast.unparse(of)))
    return sorted(set(found))


def _said(number: int, code: str, errors: Mapping[str, Mapping[int, list[str]]]) -> str:
    said = [
        f"  {checker + ':':8} {error}" for checker in errors for error in errors[checker][number]
    ]
    return "\n".join([code, *said])


def main() -> None:
    """Write the page."""
    PAGE.write_text(documentation(), encoding="utf-8")


if __name__ == "__main__":
    main()
