"""The recorded runs in a real browser, from file://: each to its end, at three widths."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import set_size
from tests.support.eventually import eventually
from tests.support.root import ROOT
from tools.docs.scenes.scenes import SCENES

pytest.importorskip("mkdocs", reason="comes with the extra docs")

pytestmark = pytest.mark.long  # the whole site is built

_LAST_WORDS = """
return [...document.querySelectorAll('[data-scene]')].flatMap(root => {
  const player = root.player;
  return player.scene.variants.map((_, number) => {
    player.choose(number);
    player.show(player.end);
    const refused = player.lines.filter(line => line.text.includes('refuses')).length;
    return root.dataset.scene + ' ' + number + ': ' + player.said.textContent +
      (refused ? ` (${refused} writes refused)` : '');
  });
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return Path(folder, "explanation", "see-it-run", "index.html").as_uri()


def test_each_recorded_run_plays_to_its_end_offline(chromium: Any, page: str) -> None:
    chromium.get(page)
    last = chromium.execute_script(_LAST_WORDS)
    assert len(last) == sum(len(scene.variants) for scene in SCENES)
    assert "acquire 0: A has released the lock" in last
    assert any(one.startswith("node-down 2: A gets QuorumUnavailable") for one in last)
    assert any(one.startswith("frozen 0: A gets LeaseLost") for one in last)
    assert [one.split(":")[0] for one in last if one.endswith("writes refused)")] == [
        "frozen 0", "clock 1", "ladder 1",
    ]  # fmt: skip
    chromium.execute_script(
        "const p = document.querySelector('[data-scene]').player;"
        "p.choose(0); p.speed.value = 8; p.play.click()"
    )
    eventually(lambda: chromium.execute_script(
        "const p = document.querySelector('[data-scene]').player;"
        "return !p.isPlaying && p.at === p.end"
    ))  # fmt: skip
    for width in (1280, 800, 390):
        set_size(chromium, width, 900)
        wide = chromium.execute_script(
            "return [...document.querySelectorAll('[data-scene], [data-scene] *')]"
            ".filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth)"
            ".map(one => one.className + ' ' + one.textContent.slice(0, 40))"
            ".concat(document.documentElement.scrollWidth > innerWidth ? ['page'] : [])"
        )
        assert wide == [], width
    # The theme's own search needs a file of its plugin that it looks for in the wrong place.
    lines = [line for line in chromium.get_log("browser") if line["level"] == "SEVERE"]
    assert [line for line in lines if "search_index.js" not in line["message"]] == []


def test_a_step_moves_and_back_returns(chromium: Any, page: str) -> None:
    chromium.get(page)
    frozen = "document.querySelector('[data-scene=frozen]')"
    said = []
    for _ in range(2):
        chromium.execute_script(f"[...{frozen}.querySelectorAll('button')][2].click()")
        said.append(chromium.execute_script(f"return {frozen}.player.at"))
    assert said[1] > said[0] > 0
    chromium.execute_script(f"[...{frozen}.querySelectorAll('button')][1].click()")
    assert chromium.execute_script(f"return {frozen}.player.at") == said[0]
