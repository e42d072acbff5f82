"""What chaos around tasks has counted, summed over the services that it was run with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.evidence import record
from tests.support.faults.nemesis import Fault
from tests.support.judges.fenced_register import FencedRegister, refused_in, updates_lost
from tests.support.judges.linearizability import Operation, judge
from tests.support.judges.validity import Judgement


class ChaosFigures:
    """Figures that are recorded again, whole, whenever more are added.

    Args:
        seed: Of the schedules.
        pools: Of the workers.
        outside: The turn whose faults lie outside of the fault model.
    """

    def __init__(self, seed: int, pools: Sequence[str], outside: str) -> None:
        self._known = {"seed": seed, "pools": pools}
        self._outside = outside
        self._turns: list[dict[str, Any]] = []
        self._sums: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._histories: Counter[str] = Counter()

    def add(
        self,
        services: str,
        turns: Mapping[str, Judgement],
        faults: Sequence[Fault],
        dead: Collection[int],
        history: list[Operation],
        effects: Mapping[str, int],
    ) -> Path:
        """Add what was counted with some services, and record all; return the file of all.

        Args:
            services: Broker and result backend, by name.
            turns: Judgements by turn.
            faults: All that were struck.
            dead: The processes that died.
            history: Of the registers.
            effects: What faults have done, by name.
        """
        for turn, judgement in turns.items():
            counts = {k: v for k, v in judgement.figures().items() if k != "outcomes"}
            self._turns.append({"services": services, "turn": turn} | counts)
            self._calls.update(judgement.outcomes)
            is_outside = turn == self._outside
            wrong = judgement.unfenced if is_outside else judgement.violations
            self._sums.update(
                acquisitions=judgement.acquisitions,
                violations=len(wrong),
                calls_lost_with_a_worker=0 if is_outside else len(judgement.lost),
                stale_writes_refused=judgement.stale,
            )
        took = max(fault.ended for fault in faults) - min(fault.began for fault in faults)
        self._sums.update(seconds=round(took), faults=len(faults), processes_that_died=len(dead))
        self._sums.update(effects)
        self._faults.update(fault.name for fault in faults)
        judged = judge(history, FencedRegister())
        self._histories.update(
            operations=judged.operations,
            registers=judged.keys,
            refused=refused_in(history),
            violations=int(not judged.is_linearizable) + len(updates_lost(history)),
        )
        record("histories_of_chaos", **self._histories)
        return record(
            "chaos",
            **self._known,
            **self._sums,
            judgements=self._turns,
            calls=self._calls,
            faults_by_kind=self._faults,
        )
