"""The tables of the reference and the code say the same: names, defaults, choices."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.utils.dispatch import Signal

import celery_redlock
from celery_redlock import ConfigurationError, RedlockError
from celery_redlock.config import options
from celery_redlock.config.declared_options import lock_options
from celery_redlock.config.options import KNOWN_OPTIONS, LockOptions
from celery_redlock.config.settings import (
    KNOWN_SETTINGS,
    OPTION_SETTINGS,
    beat_settings_from,
    settings_from,
)
from celery_redlock.redlock import events
from tests.support.judges.decision_table import ENDS, ROWS
from tests.support.root import ROOT
from tools.docs import files_page
from tools.docs.markdown import codes, tables
from tools.docs.pictures.house import layers

DOCS = ROOT / "docs"
PACKAGE = ROOT / "celery_redlock"
CALLBACKS = "celery_redlock.redlock.threads.callbacks"
LEVELS = ("debug", "info", "warning", "error", "critical")
GUARDS = ("sqlalchemy", "psycopg", "django", "redis", "objects")
CHOICES = (options.Lifetime, options.OnConflict, options.OnUnavailable, options.OnLost)


def rows(page: str, first_column: str) -> dict[str, dict[str, str]]:
    """Return the rows of the page's table whose first column is so named, by their first cell."""
    found = [table for table in tables(DOCS / page) if next(iter(table[0])) == first_column]
    assert len(found) == 1, f"{page} has {len(found)} tables with a first column {first_column!r}"
    by_name = {codes(row[first_column])[0]: row for row in found[0]}
    assert len(by_name) == len(found[0]), f"{page} has a row twice"
    return by_name


def literal(cell: str) -> object:
    """Return the value that a cell shows."""
    [code] = codes(cell)
    return ast.literal_eval(code)


def plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def accepts(option: str, value: object) -> bool:
    try:
        lock_options("task", {option: value}, {}, max_ttl=60.0)
    except ConfigurationError:
        return False
    return True


def test_the_settings_page_lists_every_effective_setting() -> None:
    assert set(rows("reference/settings.md", "setting")) == KNOWN_SETTINGS - OPTION_SETTINGS


@pytest.mark.parametrize("name", sorted(rows("reference/settings.md", "setting")))
def test_the_default_of_a_setting_is_the_documented_one(name: str) -> None:
    cell = rows("reference/settings.md", "setting")[name]["default"]
    if name == "redlock_nodes":
        assert cell == "see below"
        return
    settings = settings_from({"redlock_nodes": ["redis://a"]})
    beat = beat_settings_from({})
    if name == "redlock_beat_on_unavailable":
        assert literal(cell) == ("publish" if beat.publishes_without_quorum else "wait")
        return
    if name.startswith("redlock_beat_"):
        assert literal(cell) == getattr(beat, name.removeprefix("redlock_beat_"))
        return
    assert literal(cell) == getattr(settings, name.removeprefix("redlock_"))


def test_the_options_page_lists_every_option() -> None:
    assert set(rows("reference/options.md", "option")) == KNOWN_OPTIONS


@pytest.mark.parametrize("name", sorted(rows("reference/options.md", "option")))
def test_the_default_of_an_option_is_the_documented_one(name: str) -> None:
    built_in = lock_options("task", {}, {}, max_ttl=60.0)
    shown = literal(rows("reference/options.md", "option")[name]["default"])
    assert shown == plain(getattr(built_in, name.removeprefix("lock_")))


@pytest.mark.parametrize("kind", CHOICES, ids=lambda kind: kind.__name__)
def test_the_choices_of_an_option_are_those_that_are_accepted(kind: type[enum.Enum]) -> None:
    [field] = [name for name, of in typing.get_type_hints(LockOptions).items() if of is kind]
    cell = rows("reference/options.md", "option")[f"lock_{field}"]["values"]
    shown = [ast.literal_eval(code) for code in codes(cell)]
    assert shown == [member.value for member in kind if accepts(f"lock_{field}", member.value)]


def test_which_policies_go_with_which_lifetime_is_documented() -> None:
    documented = rows("reference/options.md", "`lock_lifetime`")
    assert {
        ast.literal_eval(lifetime): {ast.literal_eval(code) for code in codes(row["policies"])}
        for lifetime, row in documented.items()
    } == {
        lifetime.value: {policy.value for policy in allowed}
        for lifetime, allowed in options.ALLOWED.items()
    }


def test_every_lifetime_is_in_the_table_of_how_to_choose_one() -> None:
    [how_to] = [table for table in tables(DOCS / "how-to/conflicts.md") if "lifetime" in table[0]]
    shown = [ast.literal_eval(codes(row["lifetime"])[0]) for row in how_to]
    assert shown == [lifetime.value for lifetime in options.Lifetime]


def test_every_conflict_policy_has_its_row_in_each_comparison() -> None:
    accepted = [one.value for one in options.OnConflict if accepts("lock_on_conflict", one.value)]
    endings = rows("reference/endings.md", "`lock_on_conflict`")
    assert [ast.literal_eval(name) for name in endings] == accepted
    [how_to] = [table for table in tables(DOCS / "how-to/conflicts.md") if "policy" in table[0]]
    assert [ast.literal_eval(codes(row["policy"])[0]) for row in how_to] == accepted


def test_every_exception_is_documented_with_its_attributes() -> None:
    public = {
        name: value
        for name in celery_redlock.__all__
        if inspect.isclass(value := getattr(celery_redlock, name))
        and issubclass(value, RedlockError)
    }
    documented = rows("reference/errors.md", "error")
    assert set(documented) == set(public)
    for name, error in public.items():
        given = set(inspect.signature(error).parameters) if "__init__" in vars(error) else set()
        given |= {each for each, value in vars(error).items() if isinstance(value, property)}
        assert set(codes(documented[name]["attributes"])) == given, name


def test_every_event_is_documented_with_its_fields() -> None:
    documented = rows("reference/events.md", "event")
    expected = {event.__name__: list(event._fields) for event in typing.get_args(events.Event)}
    assert {name: codes(row["fields"]) for name, row in documented.items()} == expected


def test_every_signal_is_documented_with_its_arguments() -> None:
    documented = rows("reference/events.md", "signal")
    public = {
        name: value
        for name in celery_redlock.__all__
        if isinstance(value := getattr(celery_redlock, name), Signal)
    }
    assert {name: set(codes(row["arguments"])) for name, row in documented.items()} == {
        name: set(vars(signal)["providing_args"]) for name, signal in public.items()
    }


def test_every_event_for_monitors_is_documented_with_its_fields() -> None:
    documented = rows("reference/events.md", "monitor event")
    sent = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("send_event"), [*_, ast.Constant(str(kind))], keywords):
                    sent[kind] = [str(keyword.arg) for keyword in keywords]
    assert {name: codes(row["fields"]) for name, row in documented.items()} == sent


def test_the_index_of_the_reference_leads_to_each_of_its_pages() -> None:
    index = (DOCS / "reference/index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (DOCS / "reference").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)", index)) == pages


def test_every_log_line_is_documented_with_its_level_and_fields() -> None:
    [table] = [table for table in tables(DOCS / "reference/events.md") if "logger" in table[0]]
    documented = {
        (codes(row["logger"])[0], row["level"].split(";")[0], *codes(row["event"] + row["fields"]))
        for row in table
    }
    assert documented == logged()


def logged() -> set[tuple[str, ...]]:
    """Return logger, level, event and fields of every line that the package logs."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {name: text for one in tree.body for name, text in constant_in(one)}
        for logger, level, line in lines_in(tree, module):
            if module == CALLBACKS and isinstance(line, ast.Name):
                continue  # its callers' line
            text = constants[line.id] if isinstance(line, ast.Name) else ast.literal_eval(line)
            found.add((logger, level.upper(), event_of(text), *re.findall(r"(\w+)=%", text)))
    return found


def lines_in(tree: ast.Module, module: str) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield logger, level and line of every call that logs, or says what is logged of an error."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("logger"), "log"), [level, line, *_]):
                yield module, level_in(level), line  # once, and not again for a while
            case ast.Call(ast.Attribute(ast.Name("logger"), "exception"), [line, *_]):
                yield module, "error", line
            case ast.Call(ast.Name("_log"), [line, *_]) if module == CALLBACKS:
                yield module, "error", line
            case ast.Call(ast.Attribute(ast.Name("logger"), level), [line, *_]) | ast.Call(
                ast.Attribute(ast.Name("callbacks"), "tell"),
                [ast.Attribute(ast.Name("logger"), level), line, *_],
            ) if level in LEVELS:
                yield module, level, line
            case ast.Call(ast.Attribute(ast.Name("callbacks"), "call"), _, keywords):
                [line] = [one.value for one in keywords if one.arg == "failed"]
                yield CALLBACKS, "error", line


def constant_in(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield name and text of the constant that a statement defines."""
    match statement:
        case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
            yield name, text


def level_in(expression: ast.expr) -> str:
    """Return the level that is named in a level's expression; error if it is made elsewhere."""
    named = [
        node.attr
        for node in ast.walk(expression)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "logging"
    ]
    return named[0] if named else "error"


def event_of(line: str) -> str:
    """Return the constant part of a log line: what stands before its fields or an explanation."""
    return re.split(r" \w+=%|:", line)[0]


def test_the_public_names_are_on_the_pages_that_say_so() -> None:
    shown = "".join(
        (DOCS / "reference" / page).read_text(encoding="utf-8")
        for page in ("api.md", "errors.md", "events.md")
    )
    missing = [
        name for name in celery_redlock.__all__ if name != "__version__" and name not in shown
    ]
    assert not missing


def test_the_guards_and_observers_are_on_the_page_of_the_api() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    public = {
        f"celery_redlock.contrib.guards.{name}.{node.name}"
        for name in GUARDS
        for node in ast.parse((PACKAGE / "contrib" / "guards" / f"{name}.py").read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    }
    public.add("celery_redlock.contrib.guards.StaleToken")
    for name in ("opentelemetry", "prometheus"):
        public.add(f"celery_redlock.observers.{name}.observe")
    assert len(public) > len(GUARDS)
    assert public - set(re.findall(r"^::: (.*)$", page, re.MULTILINE)) == set()


def test_each_file_is_in_the_tables_of_the_architecture_with_its_docstring() -> None:
    shown = files_page.tables()
    assert "<!-- the files -->" in (DOCS / "explanation" / "architecture.md").read_text("utf-8")
    for name, said in files_page.files().items():
        row = f" {said} |" if not name.endswith("__init__.py") else f"\n\n{said}\n"
        assert row in shown, name


def test_each_script_is_on_the_page_of_the_architecture() -> None:
    [scripts] = [one for one in tables(DOCS / "explanation/architecture.md") if "effect" in one[0]]
    shown = {codes(row["file"])[0] for row in scripts}
    assert shown == {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.lua")}


def test_the_rooms_of_the_architecture_are_the_layers_that_are_checked() -> None:
    [rooms] = [one for one in tables(DOCS / "explanation/architecture.md") if "room" in one[0]]
    shown: dict[int, set[str]] = {}
    for row in rooms:
        name = codes(row["room"])[0]
        assert (PACKAGE / name).is_dir() == name.endswith("/"), name
        shown.setdefault(int(row["layer"]), set()).add(name.removesuffix(".py").rstrip("/"))
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    checked = layers("layers", configuration)[::-1]
    assert shown == {number: {*names} for number, names in enumerate(checked)}


def test_files_that_the_architecture_speaks_of_exist() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in PACKAGE.rglob("*.*")]
    named = set(re.findall(r"`([\w/]+\.(?:py|lua))`", text))
    assert len(named) > 15
    assert [one for one in named if not any(file.endswith(f"/{one}") for file in files)] == []


@pytest.mark.parametrize("top", ["tests", "tools"])
def test_the_table_of_folders_shows_every_one(top: str) -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / top).glob("*/*.py")}
    assert set(re.findall(rf"^\| `{top}/(\w+)/` \|", text, re.MULTILINE)) == folders


def test_links_of_pages_to_files_lead_to_files_that_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page}: {target}"


def make_targets() -> set[str]:
    makefile = Path(ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs"])
def test_make_targets_that_are_named_exist(page: str) -> None:
    at = ROOT / page
    text = "".join(path.read_text("utf-8") for path in ([at] if at.is_file() else at.rglob("*.md")))
    named = set(re.findall(r"(?:^\$ |`)make ([a-z]+)", text, re.MULTILINE))
    assert named <= make_targets()
    if page == "README.md":
        assert {"demo", "test"} <= named


def test_the_readme_begins_with_what_becomes_of_a_duplicate() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    beginning = readme.partition("\n## ")[0]
    assert lock_options("task", {}, {}, max_ttl=60.0).on_conflict is options.OnConflict.SKIP
    assert "a duplicate is **skipped**" in beginning
    [word] = re.findall(r'`lock_on_conflict="(\w+)"`', beginning)
    assert options.OnConflict(word) is options.OnConflict.WAIT


def test_the_commands_come_first_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [first, *_] = re.findall(r"^```console\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert [line.split()[:3] for line in first.splitlines()] == [
        ["$", "make", "demo"],
        ["$", "make", "test"],
    ]


def test_what_becomes_of_a_refused_execution_is_documented_row_by_row() -> None:
    [documented] = [
        table for table in tables(DOCS / "reference/endings.md") if "situation" in table[0]
    ]
    assert documented == [
        {"situation": row.condition, "policy": row.policies, "the message": ENDS[row.action]}
        for row in ROWS
    ]
