"""A limit of a process's memory for which the kernel kills it: a cgroup's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.requirements import unmet

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(pid: int, mib: int) -> Iterator[None]:
    """Have the kernel's OOM killer end process `pid` should it come to need more than `mib` MiB.

    Only who may make a cgroup can do that; elsewhere the test is `unmet`.
    """
    # Version 1 has one tree for each controller.
    is_v1 = (_ROOT / "memory").is_dir()
    group = (_ROOT / "memory" if is_v1 else _ROOT) / f"redlock-test-{secrets.token_hex(4)}"
    limit = str(mib << 20)
    try:
        group.mkdir()
    except OSError as error:
        unmet(f"no cgroup can be made: {error}", "cgroup")
    try:
        try:
            if is_v1:
                (group / "memory.limit_in_bytes").write_text(limit)
            else:
                (group / "memory.max").write_text(limit)
                (group / "memory.swap.max").write_text("0")
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            unmet(f"the memory of a cgroup can't be limited: {error}", "cgroup")
        yield
    finally:
        # A dead process leaves it some time after it has died.
        eventually(lambda: not (group / "cgroup.procs").read_text().split())
        group.rmdir()
