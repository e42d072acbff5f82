"""Try the wheel where the source tree is not: run locked tasks, and do what the docs say.

One environment for each supported Celery, with what pip then chooses and no test packages, runs
`wheel_trial.py` on a Redis broker, and on RabbitMQ if there is one. One does what README and
tutorial say, one walks a stranger's first hour. The wheel has every file of the package, so what
the tests import has come in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from celery_redlock.testing import find_server_binary

ROOT = Path(__file__).resolve().parents[1]
OLDER = sorted(file.stem.removeprefix("celery-") for file in (ROOT / ".ci").glob("celery-*.txt"))


def main() -> None:
    """Build the wheel, then try it with each Celery."""
    with tempfile.TemporaryDirectory(prefix="celery-redlock-wheel-") as name:
        folder = Path(name)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
        (wheel,) = folder.glob("*.whl")
        check_files(wheel)
        for celery in ["celery", *(f"celery=={version}.*" for version in OLDER)]:
            python = new_environment(folder / celery.strip("*"), str(wheel), celery)
            run_a_task(python)
        walk_the_docs(new_environment(folder / "walk", f"{wheel}[testing]"))
        command = [sys.executable, "-m", "tools.docs.first_hour", str(wheel)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=1200)


def check_files(wheel: Path) -> None:
    """Check that the wheel has every file of the package, and no other."""
    package = ROOT / "celery_redlock"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(f"{package.name}/")}
    if names != expected:
        sys.exit(f"missing in the wheel, or not of the package: {sorted(names ^ expected)}")


def new_environment(folder: Path, *packages: str) -> Path:
    """Return the Python of a new environment with these packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip(str(python), "install", *packages)
    return python


def run_a_task(python: Path) -> None:
    """Have a worker run a task, with nothing of this environment but the server of its Redis."""
    trial = shutil.copy(ROOT / ".ci" / "wheel_trial.py", python.parent / "trial.py")
    run(python, [str(trial)], python.parent, REDLOCK_SERVER_BINARY=str(find_server_binary()))


def walk_the_docs(python: Path) -> None:
    """Do what README and tutorial say, with the server that the wheel's extra brings."""
    names = [ROOT / ".ci" / "wheel_walk.py", ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
    copies = [shutil.copy(name, python.parent) for name in names]
    run(python, list(map(str, copies)), python.parent)


def run(python: Path, arguments: list[str], folder: Path, **variables: str) -> None:
    """Run Python in a folder, without what this environment tells it of where modules are."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), *arguments]
    subprocess.run(command, cwd=folder, env=env | variables, check=True, timeout=1200)


def pip(python: str, *arguments: str) -> None:
    """Run pip, quietly."""
    subprocess.run([python, "-m", "pip", *arguments, "--quiet"], check=True, timeout=900)


if __name__ == "__main__":
    main()
