"""The demo: three scenes from the life of a billing service, played by real processes.

    python -m example_project.demo

Exits with status 0 only if every number is right, and leaves no process running.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import redis
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from celery_redlock.testing import find_server_binary

from .ledger import Entry
from .score import Result, Scene, Score, is_skipped, mistakes, score_table
from .stage import Stage, StageError, set_stage
from .tasks import issue_invoice

_LOCK_NODES = 5
_DUPLICATES = 20
_NET_CENTS = 10_000

_console = Console(highlight=False)
_started_at = time.monotonic()


def main() -> int:
    """Play the scenes, count their outcomes, and return the exit status."""
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGHUP, _exit)
    try:
        find_server_binary()
    except FileNotFoundError as error:
        _console.print(f"[bold red]failed[/] {escape(str(error))}")
        return 1
    try:
        with set_stage(_LOCK_NODES) as stage:
            try:
                status = _play(stage)
            except BaseException as error:
                if isinstance(error, Exception):
                    _show_logs(stage)
                # Its frames hold results.
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                # A result unsubscribes when it is collected: not after its server has gone.
                gc.collect()
    except StageError as error:
        _console.print(f"[bold red]failed[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        _console.print("Interrupted; nothing is left running.")
        return 128 + signal.SIGINT
    _say("Nothing is left running.")
    return status


def _play(stage: Stage) -> int:
    _say("A billing service: 5 lock nodes, a broker, a worker with 2 processes,")
    _say(f"and a ledger. Only for this demo, in {stage.folder}")
    stage.start_worker("one")
    scenes = [send_one_invoice_many_times(stage), lose_two_nodes(stage), freeze_a_worker(stage)]
    _console.print()
    _console.print(score_table(scenes, stage.ledger))
    wrong = mistakes(scenes, stage.ledger)
    if not wrong:
        return 0
    _show_logs(stage)
    for line in wrong:
        _console.print(f"[bold red]wrong[/] {line}")
    return 1


def send_one_invoice_many_times(stage: Stage) -> Scene:
    """Send one invoice twenty times: one task runs, nineteen are skipped."""
    invoice = "INV-1001"
    _headline(f"1. The same invoice is sent {_DUPLICATES} times")
    _say("A user clicks again, a request is repeated: only one document may result.")
    stage.office.shut()
    sent = [_send(invoice) for _ in range(_DUPLICATES)]
    stage.wait_until(
        "all tasks but one have ended",
        lambda: sum(result.ready() for result in sent) >= _DUPLICATES - 1,
    )
    stage.office.open()
    _wait_for(stage, sent)
    by_state: dict[str, list[Result]] = {}
    for result in sent:
        by_state.setdefault(str(result.state), []).append(result)
    for _, results in sorted(by_state.items()):
        _say(f"{len(results):2} of {_DUPLICATES}: {_outcome(results[0])}")
    _say("A skipped task ends at once, so a caller that waits for its result continues.")
    expected = Score(sent=_DUPLICATES, ran=1, skipped=_DUPLICATES - 1, issued=1, refused=0)
    return Scene("same invoice", [invoice], sent, expected)


def lose_two_nodes(stage: Stage) -> Scene:
    """Kill two of the five nodes while a task runs: this task and the next ones run as usual."""
    invoices = [f"INV-200{number}" for number in range(1, 6)]
    _headline("2. Two of the five lock nodes die")
    stage.office.shut()
    sent = [_send(invoices[0])]
    stage.wait_until("the task runs", lambda: _claim(stage, sent[0]))
    _say(f"{invoices[0]} is being issued. {stage.votes_for(invoices[0])} nodes hold its lock.")
    for node in stage.nodes[:2]:
        node.kill()
    _say(f"SIGKILL to two nodes: {stage.votes_for(invoices[0])} still hold it, a majority.")
    stage.office.open()
    sent += [_send(invoice) for invoice in invoices[1:]]
    _wait_for(stage, sent)
    for invoice, result in zip(invoices, sent, strict=True):
        _say(f"{invoice}: {_outcome(result)}")
    _say("The running task and the four after it ran as usual.")
    expected = Score(sent=5, ran=5, skipped=0, issued=5, refused=0)
    return Scene("nodes killed", invoices, sent, expected)


def freeze_a_worker(stage: Stage) -> Scene:
    """Freeze a worker until another one has done its work: its late write is refused."""
    invoice = "INV-3001"
    _headline("3. A worker freezes in the middle of a task, and wakes up too late")
    sleeper = stage.workers[0]
    stage.office.shut()
    first = _send(invoice)
    claim = stage.wait_until("the task runs", lambda: _claim(stage, first))
    sleeper.pause()
    stage.office.open()
    _say(f"Worker {sleeper.name} claims {invoice} (token {claim.token}), asks for its tax,")
    _say("and is frozen (SIGSTOP), as when its virtual machine is migrated.")
    _wait_until_it_takes_no_message(stage)
    other = stage.start_worker("two")
    stage.wait_until("the lease has ended", lambda: not stage.votes_for(invoice))
    _say("Its lease is not renewed and ends: no node holds the lock any more.")
    second = _send(invoice)
    _wait_for(stage, [second])
    newer = stage.wait_until("it was claimed", lambda: _claim(stage, second))
    _say(f"Sent again: worker {other.name} claims it (token {newer.token}, higher).")
    _say(_outcome(second))
    sleeper.resume()
    _say(f"Worker {sleeper.name} wakes up (SIGCONT) and continues with its next line, a write.")
    _wait_for(stage, [first])
    _say(_outcome(first))
    _say("A lock alone would have allowed that write. The ledger compares tokens.")
    expected = Score(sent=2, ran=2, skipped=0, issued=1, refused=1)
    return Scene("worker frozen", [invoice], [first, second], expected)


def _send(invoice: str) -> Result:
    return issue_invoice.delay(invoice, _NET_CENTS)


def _wait_for(stage: Stage, results: Sequence[Result]) -> None:
    stage.wait_until("every task has ended", lambda: all(result.ready() for result in results))


def _claim(stage: Stage, result: Result) -> Entry | None:
    """Return the journal's line in which the task of `result` claims its invoice; None before."""
    for entry in stage.ledger.journal():
        if entry.action == "claimed" and entry.run.task_id == result.id:
            return entry
    return None


def _wait_until_it_takes_no_message(stage: Stage) -> None:
    """Wait until the broker has answered the frozen worker's last request for a message.

    Each request blocks for a second. A message sent meanwhile would go to the frozen worker.
    """
    with redis.Redis.from_url(stage.broker.url) as broker:

        def is_quiet() -> bool:
            # The first time, the last request may still be on its way to the broker.
            return not any(broker.info("clients")["blocked_clients"] for _ in range(2))

        stage.wait_until("the frozen worker asks for no message", is_quiet)


def _outcome(result: Result) -> str:
    """Return a task's state and what it returned or raised."""
    if result.successful():
        return f"[green]{result.state}[/]  document {result.result}"
    colour = "yellow" if is_skipped(result) else "red"
    return (
        f"[{colour}]{result.state}[/]  {type(result.result).__name__}: {escape(str(result.result))}"
    )


def _headline(text: str) -> None:
    _console.print(f"\n[bold]{text}[/]")


def _say(text: str) -> None:
    """Print a line with its time."""
    line = Table.grid(padding=(0, 2))
    line.add_row(f"[dim]{time.monotonic() - _started_at:5.1f} s[/]", text)
    _console.print(line)


def _show_logs(stage: Stage) -> None:
    for worker in stage.workers:
        _console.print(f"\n[bold]The end of {worker.log.name}[/]")
        _console.print(worker.log_tail(), markup=False, soft_wrap=True)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
