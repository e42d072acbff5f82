"""The recordings as the page loads them: JSON in a script, since a file:// page can't fetch."""

from __future__ import annotations

import json

from tests.support.root import ROOT

from .scenes import SCENES
from .stage import recorded

PATH = ROOT / "docs" / "javascripts" / "recordings.js"


def recordings() -> str:
    """Run each variant of each scene and return the file of recordings."""
    found = [
        scene._asdict()
        | {
            "variants": [
                {"label": one.label, "events": recorded(**one.options)} for one in scene.variants
            ]
        }
        for scene in SCENES
    ]
    lines = ",\n".join(json.dumps(scene, separators=(",", ":")) for scene in found)
    return f"window.redlockRecordings = [\n{lines}\n];\n"
