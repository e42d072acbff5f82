"""Draw the pictures of the documentation: `python -m tools.docs.pictures`."""

from __future__ import annotations

from . import PICTURES


def main() -> None:
    """Write each picture where the pages show it."""
    for file, draw in PICTURES.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
