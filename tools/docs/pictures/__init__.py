"""Pictures that are drawn, not taken from a run: each file, and the function that draws it."""

from __future__ import annotations

from tests.support.root import ROOT

from . import fence, house, lifetimes, quorum, tick

FOLDER = ROOT / "docs" / "images"
PICTURES = {
    FOLDER / "quorum-round.svg": quorum.draw,
    FOLDER / "lifetimes.svg": lifetimes.draw,
    FOLDER / "fence.svg": fence.draw,
    FOLDER / "one-tick.svg": tick.draw,
    FOLDER / "layers.svg": house.draw,
    FOLDER / "layers-of-the-lock.svg": house.draw_lock,
}
