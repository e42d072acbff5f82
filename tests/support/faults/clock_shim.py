"""Step the wall clock of one server while it runs."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from tests.support.requirements import unmet

_SOURCE = Path(__file__).with_suffix(".c")


def build_clock_shim(folder: Path) -> Path:
    """Return the compiled library; ends the test if this machine can't have one."""
    if sys.platform != "linux":
        unmet("stepping a server's clock needs Linux")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        unmet("stepping a server's clock needs a C compiler")
    library = folder / "clock_shim.so"
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-O2", "-fPIC", "-shared", "-o", library, _SOURCE],
        check=True,
    )
    return library


class WallClock:
    """The wall clock of every process that is started with `env`.

    Attributes:
        env: Environment variables for the process.
    """

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(struct.pack("=q", 0))
        with file.open("r+b") as opened:
            self._offset = mmap.mmap(opened.fileno(), 8)
        self.env = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET_FILE": str(file)}

    @property
    def offset(self) -> float:
        """Seconds by which the clock is ahead of this machine's."""
        microseconds: int = struct.unpack("=q", self._offset)[0]
        return microseconds / 1e6

    def step(self, seconds: float) -> None:
        """Move the clock, at once: forward, or back if negative."""
        self._offset[:] = struct.pack("=q", round((self.offset + seconds) * 1e6))

    def close(self) -> None:
        """Unmap the file; processes keep the offset they have."""
        self._offset.close()
