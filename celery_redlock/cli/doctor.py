"""The command ``celery -A proj redlock doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_redlock.suggestion import closest
from celery_redlock.units import count

from .command_line import other_command
from .target import as_json, target_of
from .text import columns, document, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.operate.doctor import Finding, Trap
    from celery_redlock.operate.target import Target

_COLOURS = {"error": "red", "warning": "yellow", "unknown": "cyan"}
_INDENT = " " * 9


@click.command()
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
@click.option(
    "--fleet",
    type=(click.IntRange(min=1), click.IntRange(min=1)),
    metavar="WORKERS PROCESSES",
    help="Check that each node has room for the connections of so many workers with so many "
    "pool processes each.",
)
@click.option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[CODE]",
    help="Print what a code means, why it matters and its remedy, and check nothing. Without a "
    "code, list them all.",
)
@as_json
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    strict: bool,
    fleet: tuple[int, int] | None,
    explain: str | None,
    as_json: bool,
) -> None:
    """Check nodes, settings and tasks for every known trap.

    A lock is written on each node, and deleted at once.
    Exits with 1 if there is an error; with --strict, also if there is a warning.
    """
    if explain is not None:
        _explain(explain, as_json=as_json)
        return
    ctx.exit(0 if _diagnose(target_of(ctx), fleet, strict=strict, as_json=as_json) else 1)


def _diagnose(
    target: Target, fleet: tuple[int, int] | None, *, strict: bool, as_json: bool
) -> bool:
    """Print the findings; return whether there is no error and, if it is strict, no warning."""
    from celery_redlock.operate.doctor import Severity, diagnose

    found = diagnose(target, fleet)
    totals = {one.value: sum(each.severity is one for each in found) for one in Severity}
    if as_json:
        findings = [finding.as_json(other_command()) for finding in found]
        click.echo(document(totals | {"findings": findings}))
    else:
        texts = [finding_text(finding, other_command()) for finding in found]
        click.echo("\n\n".join([*texts, _sum(found, totals)]))
    return not (totals["error"] or (strict and totals["warning"]))


def _explain(code: str, *, as_json: bool) -> None:
    """Print the trap of a code; '': all traps, a line for each.

    Raises:
        BadParameter: No trap has this code.
    """
    from celery_redlock.operate.doctor import TRAPS

    traps = {trap.code: trap for trap in TRAPS}
    if code and code.upper() not in traps:
        close = closest(code.upper(), traps)
        remedy = f"did you mean {close}?" if close else "--explain without a code lists them."
        raise click.BadParameter(f"{visible(code)!r} is an unknown code; {remedy}")
    chosen = [traps[code.upper()]] if code else list(TRAPS)
    if as_json:
        click.echo(document([_trap_as_json(trap) for trap in chosen]))
    elif code:
        click.echo(_trap_text(chosen[0]))
    else:
        click.echo(columns(("CODE", "FINDING"), [(trap.code, trap.title) for trap in chosen]))


def _trap_text(trap: Trap) -> str:
    return "\n".join(
        (
            f"{trap.code}  {trap.title}",
            f"why:   {trap.why}",
            f"fix:   {trap.remedy(other_command())}",
            f"more:  {trap.anchor}",
        )
    )


def _trap_as_json(trap: Trap) -> dict[str, str]:
    return {
        "code": trap.code,
        "title": trap.title,
        "why": trap.why,
        "fix": trap.remedy(other_command()),
        "docs": trap.anchor,
    }


def finding_text(finding: Finding, command: str) -> str:
    """Return a finding as a paragraph; `command` is the start of each command in it."""
    severity = finding.severity.value
    head = click.style(f"{severity.upper():{len(_INDENT) - 1}}", fg=_COLOURS[severity])
    return "\n".join(
        (
            f"{head} {finding.trap.code}  {finding.trap.title}",
            f"{_INDENT}where:  {visible(finding.where)}",
            f"{_INDENT}what:   {visible(finding.what)}",
            f"{_INDENT}why:    {finding.trap.why}",
            f"{_INDENT}fix:    {visible(finding.fix(command))}",
            f"{_INDENT}more:   {finding.trap.anchor}",
        )
    )


def _sum(found: Sequence[Finding], totals: dict[str, int]) -> str:
    if not found:
        return "Nothing was found."
    errors, warnings = count(totals["error"], "error"), count(totals["warning"], "warning")
    return f"{errors}, {warnings}, {totals['unknown']} unknown."
