"""Which code a recorded run was of, and what of it has changed since.

    python -m tools.evidence.runs [--most COMMITS]

It prints this for each kind of run, and ends with 1 if more commits than that have changed the
files of one; the pages say only whether they have changed (`.publication`). A run knows its files
by their content, which a rebase and a shallow clone leave alone; commit and day are for people.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.root import ROOT

FOLDER = ROOT / "docs" / "evidence"
PERFORMANCE = ROOT / "docs" / "explanation" / "performance" / "results.json"
MOST_COMMITS = 50
"""Before a release, a run that is older than so many commits to its files is made again."""

_LOCK = "celery_redlock/redlock"
_TASKS = tuple(
    f"celery_redlock/{room}"
    for room in ("config", "execution", "keys", "messages", "pools", "task", "worker")
)
_WHOLE = ("celery_redlock",)
FILES: Mapping[str, tuple[str, ...]] = {
    "model": ("tests/model",),
    "promela": ("tests/model",),
    "replay": (_LOCK, "tests/model"),
    "replay_on_servers": (_LOCK, "tests/model"),
    "simulation": (_LOCK, *_TASKS, "tests/simulation"),
    "chaos": (_LOCK, *_TASKS, "tests/chaos"),
    "soak": (_LOCK, "tests/chaos"),
    "histories": (_LOCK,),
    "histories_of_chaos": (_LOCK, *_TASKS, "tests/chaos"),
    "histories_of_storm": (_LOCK, *_TASKS),
    "beat_replicas": (_LOCK, "celery_redlock/beat"),
    "peers": (_LOCK,),
    "mutants": (*_WHOLE, "tools/mutation"),
    "known_bugs": (*_WHOLE, "tools/mutation"),
    "ladder": (_LOCK,),
    "neighbours": (_LOCK,),
    "least_privilege": _WHOLE,
    "tls": _WHOLE,
    "secrets": _WHOLE,
    "hostile_input": _WHOLE,
    "performance": _WHOLE,
}
"""Files and folders that the figures of each kind speak of."""
_SUFFIXES = {".py", ".lua", ".pml", ".js", ".json", ".html"}


@dataclass(frozen=True, slots=True)
class Run:
    """Which code a run was of.

    Attributes:
        commit: Commit that was checked out, abbreviated; "": there was no repository.
        day: Day on which it was run, as 2026-01-31.
        content: Digest of each of `FILES` then.
    """

    commit: str
    day: str
    content: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.day}, commit {self.commit}" if self.commit else self.day

    def changed(self, kind: str, root: Path = ROOT) -> list[str]:
        """Return those of the kind's files and folders whose content is another one now."""
        return [
            name for name in FILES.get(kind, _WHOLE) if self.content.get(name) != digest(name, root)
        ]


def run_now(kind: str, root: Path = ROOT) -> dict[str, object]:
    """Return the run that records figures of this kind now, as JSON can hold it."""
    day = dt.datetime.now(dt.timezone.utc).date().isoformat()
    content = {name: digest(name, root) for name in FILES.get(kind, _WHOLE)}
    return asdict(Run(_git("rev-parse", "--short", "HEAD") or "", day, content))


def digest(name: str, root: Path = ROOT) -> str:
    """Return a digest of what a file, or all files in a folder, have in them."""
    found = hashlib.sha256()
    place = root / name
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    for file in files:
        if file.suffix in _SUFFIXES and file.is_file():
            found.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def runs_in(folder: Path) -> dict[str, list[Run]]:
    """Return the runs whose figures are in a folder, by kind: one for each of its parts."""
    found: dict[str, list[Run]] = {}
    for file in sorted(folder.glob("*.json")):
        recorded = json.loads(file.read_text()).get("run")
        if recorded:
            found.setdefault(file.stem.partition("--")[0], []).append(Run(**recorded))
    return found


def all_runs() -> dict[str, list[Run]]:
    """Return the runs that the documentation shows, those of the performance page too."""
    measured = Run(**json.loads(PERFORMANCE.read_text())["circumstances"]["run"])
    return {**runs_in(FOLDER), "performance": [measured]}


def oldest(runs: Iterable[Run]) -> Run:
    """Return the run of the earliest day."""
    return min(runs, key=lambda run: run.day)


def commits_since(run: Run, names: Iterable[str]) -> int | None:
    """Return how many commits have changed these files since a run; None: git does not know."""
    if not run.commit:
        return None
    count = _git("rev-list", "--count", f"{run.commit}..HEAD", "--", *names)
    return int(count) if count else None


def changed_since(kind: str, runs: Iterable[Run]) -> list[str]:
    """Return those of the kind's files and folders that have changed since any of its runs."""
    changed = {name for run in runs for name in run.changed(kind)}
    return [name for name in FILES.get(kind, _WHOLE) if name in changed]


def age_of(kind: str, runs: Sequence[Run]) -> tuple[list[str], int | None]:
    """Return which files have changed since, and in how many commits since the oldest run."""
    changed = changed_since(kind, runs)
    return changed, commits_since(oldest(runs), changed) if changed else 0


def told(changed: list[str], commits: int | None) -> str:
    """Return in words what has changed since a run."""
    if not changed:
        return "none of its files has changed since"
    many = "" if commits is None else f" in {commits} commit{'' if commits == 1 else 's'}"
    return f"changed since{many}: {', '.join(changed)}"


def _git(*arguments: str) -> str | None:
    """Return what git prints; None if it fails, or there is none."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def main(arguments: list[str]) -> int:
    """Print how old each run is; return 1 if one is older than it may be."""
    parser = argparse.ArgumentParser(prog="python -m tools.evidence.runs", description=__doc__)
    parser.add_argument(
        "--most", type=int, help=f"commits to its files; {MOST_COMMITS} before a release"
    )
    most = parser.parse_args(arguments).most
    too_old = []
    for kind, runs in all_runs().items():
        changed, commits = age_of(kind, runs)
        sys.stdout.write(f"{kind:20} {oldest(runs)}: {told(changed, commits)}\n")
        # Without git nobody knows how old it is.
        if most is not None and changed and (commits is None or commits > most):
            too_old.append(kind)
    if too_old:
        sys.stdout.write(f"run again, by make evidence or make performance: {', '.join(too_old)}\n")
    return int(bool(too_old))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
