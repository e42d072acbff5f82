"""`celery-redlock list` that says what it cost: `python -m tests.support.processes.list_measured`.

The last line on stderr has its seconds, those on the CPU, and by how many MiB its memory grew.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import celery_redlock.operate.listing  # noqa: F401  # what it loads when it runs is no growth
from celery_redlock.cli import alone

_STATUS = Path("/proc/self/status")


def peak_mib() -> float:
    """Return the most memory that this program has had, in MiB."""
    if _STATUS.exists():
        # Linux counts the peak of the program that started this one in ru_maxrss.
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def main() -> None:
    """Run the command, and say what it cost."""
    peak, computed, began = peak_mib(), time.process_time(), time.monotonic()
    alone.main(sys.argv[1:], standalone_mode=False)
    wall, cpu = time.monotonic() - began, time.process_time() - computed
    sys.stderr.write(f"{wall} {cpu} {peak_mib() - peak}\n")


if __name__ == "__main__":
    main()
