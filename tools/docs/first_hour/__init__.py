"""The first hour of a stranger, walked from the wheel: see `walk.py` and `page.py`."""
