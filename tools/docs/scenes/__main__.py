"""Record the scenes again: python -m tools.docs.scenes."""

from .recordings import PATH, recordings

if __name__ == "__main__":
    PATH.write_text(recordings(), encoding="utf-8")
