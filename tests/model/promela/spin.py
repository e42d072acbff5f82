"""One row of the table, checked by Spin.

    checked = check(row)
    assert checked.violation is None, checked.said

Spin writes a program in C that visits every state; a compiler makes it fast.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.model.checked import Checked
from tests.model.table import Row
from tests.model.variants import Confirm, Heal, Lost, Rules, Scope, Supersede, Vote

MODEL = Path(__file__).with_name("redlock.pml")
DEPTH = 10_000_000
_CONFIRM = {
    Confirm.NEVER_ASKED: "NEVER",
    Confirm.UNCONDITIONALLY: "ALWAYS",
    Confirm.IF_OWNER: "IF_OWNER",
    Confirm.IF_OWNER_AND_FLOOR: "IF_OWNER_AND_FLOOR",
}


def is_installed() -> bool:
    """Return whether there is Spin, and a compiler for what it writes."""
    return all(map(shutil.which, ("spin", "gcc")))


def check(row: Row, folder: Path, *, reaches: str | None = None) -> Checked:
    """Visit every state of a row, or stop at the first that breaks a promise.

    Args:
        row: Rules, scope, promises.
        folder: An empty one, for what is written.
        reaches: Instead of the promises: a condition on the state, in Promela. The "violation" is
            then a state in which it is true.
    """
    asserted = [f"KEEP_{promise.__name__}" for promise in row.promises]
    if reaches:
        asserted = [f"REACHES ({reaches})"]
    macros = [*asserted, *_world(row.scope), *_rules(row.rules)]
    text = "".join(f"#define {macro}\n" for macro in macros) + MODEL.read_text(encoding="utf-8")
    (folder / "row.pml").write_text(text, encoding="utf-8")
    _run(folder, "spin", "-a", "row.pml")
    # Of safety only; without a reduction, so that states are counted as they are.
    # A mistake is found at once: then it is not worth the compiler's time.
    speed = "-O1" if row.is_sound and not reaches else "-O0"
    _run(folder, "gcc", speed, "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c")
    # -E: that nothing more can happen is no mistake. -w: it makes more room when it needs it.
    said = _run(folder, "./pan", "-E", f"-m{DEPTH}", "-w20")
    [states] = re.findall(r"^ *(\d+) states, stored", said, re.MULTILINE)
    broken = re.findall(r"assertion violated \(?(\w+)", said)
    is_cut = "max search depth too small" in said or "out of memory" in said
    is_whole = not broken and not is_cut and "errors: 0" in said
    return Checked(int(states), is_whole, broken[0] if broken else None, said)


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(  # asserted below
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}"
    return done.stdout


def _rules(rules: Rules) -> Iterator[str]:
    yield f"CONFIRM_RULE {_CONFIRM[rules.confirm]}"
    yield f"CONFIRMATIONS (QUORUM - {0 if rules.confirmed_by_majority else 1})"
    yield f"HEAL_HEEDS_FLOOR {int(rules.heal is Heal.IF_ABSENT_AND_FLOOR)}"
    yield f"VOTE_HEEDS_FLOOR {int(rules.vote is Vote.IF_OWNER_AND_FLOOR)}"
    yield f"LOST_AFTER {'1' if rules.lost is Lost.ONE_RAISED_FLOOR else 'QUORUM'}"
    others = rules.lost is Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS
    yield f"OTHERS_COUNT_AS_LOST {int(others)}"
    yield f"RELEASE_RAISES_FLOOR {int(rules.release_raises_floor)}"
    yield f"RELEASE_FOLLOWS_GRANT {int(rules.release_follows_grant)}"
    yield f"SUPERSEDES_ANYONE {int(rules.supersede is Supersede.ANYONE)}"
    yield f"HAND_OVER_HEEDS_FLOOR {int(rules.hand_over_heeds_floor)}"
    yield f"ADMIT_RULE {rules.admit.name}"


def _world(scope: Scope) -> Iterator[str]:
    attempts = scope.attempts
    yield f"NODES {scope.nodes}"
    yield f"ATTEMPTS {len(attempts)}"
    yield f"EXTENDING {_set(each.extends for each in attempts)}"
    yield f"TOKENLESS {_set(not each.gets_token for each in attempts)}"
    yield f"HANDED_OVER {_set(each.is_handed_over for each in attempts)}"
    for number, attempt in enumerate(attempts):
        if attempt.supersedes is not None:
            yield f"SUPERSEDED_BY_{number} {attempt.supersedes}"
        if attempt.retry_of is not None:
            yield f"RETRY_OF_{number} {attempt.retry_of}"
        if attempt.same_owner_as is not None:
            yield f"OWNER_OF_{number} {attempt.same_owner_as}"
    yield f"RELEASES {int(scope.releases)}"
    yield f"EXPIRIES {255 if scope.expiries is None else scope.expiries}"
    yield f"DUPLICATES {scope.duplicates}"
    yield f"LEAP {scope.leap}"
    yield f"FORGETTING {scope.forgetting}"
    yield f"ADMISSIONS {int(scope.admissions)}"
    if scope.clocks:
        instants = scope.clocks.instants
        assert len(instants) == 1 or scope.clocks.guard == instants[1] - instants[0]
        yield from ("CLOCKS", f"SKEW {scope.clocks.max_skew}", f"GUARD {scope.clocks.guard}")
        yield f"PASSES {len(instants) - 1}"
        for number, offset in enumerate(scope.clocks.offsets):
            yield f"OFFSET_{number} {offset}"


def _set(members: Iterator[bool]) -> int:
    return sum(1 << number for number, is_in in enumerate(members) if is_in)
