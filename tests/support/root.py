"""Where the project is: its tests' processes are started there."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
