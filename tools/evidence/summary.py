"""What came of each kind of run, in a few words: the table at the top of the page of evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Figures = Mapping[str, Any]
Words = Callable[[Figures], str]


def summary_of(kind: str, run: Figures) -> tuple[str, str]:
    """Return what was tried and what came of it; 'not recorded' where a figure is missing."""
    tried, result = _SUMMARIES[kind]
    return _words(tried, run), _words(result, run)


def _words(words: Words, run: Figures) -> str:
    try:
        return words(run)
    except KeyError:
        return "not recorded"


def _violations(run: Figures) -> str:
    return _count(run["violations"], "violation")


def _explored(run: Figures) -> str:
    states = run["states"]
    return f"{_count(sum(states.values()), 'state')} of {_count(len(states), 'variant')}"


def _verdicts(run: Figures) -> str:
    breaks = [verdict for verdict in run["verdicts"].values() if verdict != "holds"]
    return (
        f"{_count(run['violations'], 'unexpected verdict')}; "
        f"{_count(len(breaks), 'variant')} found to be wrong, as expected"
    )


def _simulated(run: Figures) -> str:
    controls = run["controls"]
    found = f"{len(controls) - len(run['controls_missed'])} of {len(controls)} known bugs found"
    if all("after schedules" in one for one in controls):
        most = max((one["after schedules"] for one in controls), default=0)
        return f"{_violations(run)}; {found} in at most {most:,} fresh schedules each"
    return f"{_violations(run)}; {found}, each in one schedule that was picked for it"


def _chaos(run: Figures) -> str:
    return f"{_violations(run)}; {_count(run['stale_writes_refused'], 'stale write')} refused"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds:.0f} seconds"


def _peers(run: Figures) -> str:
    counts = ("overlaps", "late_writes", "foreign_releases", "token_faults")
    others = {
        row["lock"] for row in run["counts"] if any(row[count] for count in counts)
    } - {"celery-redlock"}  # fmt: skip
    return f"ours: {_violations(run)}; {_count(len(others), 'other')} with violations"


def _equivalent(run: Figures) -> int:
    equivalent = run.get("equivalent", 0)
    return equivalent if isinstance(equivalent, int) else len(equivalent)


def _day(run: Figures) -> str:
    counts = (("tasks", "task"), ("ticks", "tick"), ("commands", "command"))
    return ", ".join(_count(sum(run[name].values()), thing) for name, thing in counts)


def _rights(run: Figures) -> str:
    needed, beyond = sum(run["refused_by_nodes"].values()), sum(run["outside_refused"].values())
    return (
        f"{_count(needed, 'needed command')} refused, {_count(beyond, 'other')} refused; "
        f"{_count(len(run['missing_right_reported']), 'missing right')} reported"
    )


def _sum(run: Figures, name: str) -> int:
    return sum(one[name] for one in run.values())


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


_SUMMARIES: Mapping[str, tuple[Words, Words]] = {
    "model": (_explored, _verdicts),
    "promela": (_explored, _verdicts),
    "replay": (
        lambda run: f"{_count(run['sent'] + run['carried_out'], 'step')} of simulated runs",
        lambda run: f"{_count(run['violations'], 'step')} that the model does not allow",
    ),
    "replay_on_servers": (
        lambda run: f"{_count(run['sent'] + run['carried_out'], 'step')} on real servers",
        lambda run: f"{_count(run['violations'], 'step')} that the model does not allow",
    ),
    "simulation": (lambda run: _count(run["schedules"], "schedule"), _simulated),
    "chaos": (
        lambda run: (
            f"{_time(run['seconds'])}: {_count(run['faults'], 'fault')}, "
            f"{_count(run['acquisitions'], 'acquisition')}"
        ),
        _chaos,
    ),
    "soak": (
        lambda run: (
            f"{_time(run['seconds'])}: {_count(run['faults'], 'fault')}, "
            f"{_count(run['holds'], 'hold')}"
        ),
        _violations,
    ),
    "beat_replicas": (
        lambda run: _count(sum(row["ticks"] for row in run["schedulers"]), "tick"),
        _violations,
    ),
    "peers": (lambda run: _count(len(run["counts"]), "run"), _peers),
    "histories": (
        lambda run: _count(run["operations"], "operation"),
        lambda run: (
            f"{_violations(run)}; {_count(run['refused_stale_writes'], 'stale write')} refused"
        ),
    ),
    "mutants": (
        lambda run: _count(run["killed"] + run["survived"] + _equivalent(run), "mutant"),
        lambda run: (
            f"{run['killed']:,} killed, {run['survived']:,} survived, "
            f"{_equivalent(run):,} change nothing"
        ),
    ),
    "known_bugs": (
        lambda run: _count(len(run["tests"]), "bug"),
        lambda run: f"{run['caught']} of {len(run['tests'])} caught",
    ),
    "ladder": (
        lambda run: _count(run["rungs"], "rung"),
        lambda run: (
            f"{run['foils_failed']} of {run['rungs']} foils failed; "
            f"ours held on {run['ours_held']} of {run['rungs']}"
        ),
    ),
    "neighbours": (
        lambda run: f"{_count(len(run), 'client')}, {_count(_sum(run, 'theirs'), 'acquisition')}",
        lambda run: f"{_count(_sum(run, 'together'), 'time')} together with ours",
    ),
    "least_privilege": (_day, _rights),
    "tls": (
        _day,
        lambda run: (
            f"{_count(sum(run['refused'].values()), 'connection')} not in order refused; "
            f"{_violations(run)}"
        ),
    ),
    "secrets": (
        lambda run: (
            f"{_count(run['secrets'], 'secret')} looked for in "
            f"{_count(sum(run['looked_at'].values()), 'text')}"
        ),
        lambda run: f"{run['found']} found",
    ),
    "hostile_input": (
        lambda run: _count(sum(run["tried"].values()), "input"),
        lambda run: (
            f"{_count(sum(run.get('refused', {}).values()), 'input')} refused; {_violations(run)}"
        ),
    ),
}
KINDS = tuple(_SUMMARIES)
