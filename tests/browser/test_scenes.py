"""The recorded runs in a real browser, from file://: each to its end, at three widths."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import set_scheme, set_size
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


TAB, ENTER, RIGHT = "\ue004", "\ue007", "\ue014"
# Contrast with the page, as WCAG defines it: of text, and of the borders that tell states apart.
_CONTRASTS = """
const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const over = (...colours) => {
  for (const one of colours) { paint.fillStyle = one; paint.fillRect(0, 0, 1, 1); }
  return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = colour => colour.map(part => part / 255)
  .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const root = document.querySelector('[data-scene=frozen]');
const back = getComputedStyle(document.body).backgroundColor;
const against = colour => {
  const [a, b] = [light(over(back, colour)), light(over(back))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const style = getComputedStyle(root);
const found = {text: against(style.color)};
for (const name of ['--scene-a', '--scene-b', '--scene-c', '--scene-bad']) {
  found[name] = against(style.getPropertyValue(name).trim());
}
return found;
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
        "frozen 0", "clock 1", "ladder 7", "ladder 9", "ladder 13",
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


def test_a_run_is_played_by_keyboard(chromium: Any, page: str) -> None:
    chromium.get(page)
    acquire = "document.querySelector('[data-scene=acquire]')"
    chromium.execute_script(f"{acquire}.querySelector('select').focus()")
    seen = []
    for _ in range(7):
        active = chromium.switch_to.active_element
        seen.append(active.tag_name)
        style = "const s = getComputedStyle(arguments[0]); return [s.outlineStyle, s.outlineWidth]"
        assert chromium.execute_script(style, active) == ["solid", "2px"], active.tag_name
        if active.text == "Step":
            active.send_keys(ENTER)
        if active.tag_name == "input":
            before = chromium.execute_script(f"return {acquire}.player.at")
            active.send_keys(RIGHT)
            assert chromium.execute_script(f"return {acquire}.player.at") > before > 0
            spoken = active.get_attribute("aria-valuetext")
            assert spoken == chromium.execute_script(f"return {acquire}.player.clock.textContent")
        active.send_keys(TAB)
    assert seen == ["select", "button", "button", "button", "select", "input", "summary"]


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_dots_move_unless_motion_is_reduced(chromium: Any, page: str, motion: str) -> None:
    features = [{"name": "prefers-reduced-motion", "value": motion}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    chromium.get(page)
    dots = chromium.execute_script(
        "const p = document.querySelector('[data-scene=acquire]').player;"
        "let most = 0;"
        "for (const at of p.shown) { p.show(at); most = Math.max(most, p.dots.childElementCount); }"
        "return most"
    )
    assert (dots > 0) is (motion == "no-preference")


def test_in_dark_colours_a_scene_is_readable(chromium: Any, page: str) -> None:
    for scheme in ("light", "dark"):
        set_scheme(chromium, scheme)
        chromium.get(page)
        chromium.execute_script("localStorage.clear()")
        chromium.get(page)
        contrasts = chromium.execute_script(_CONTRASTS)
        assert min(contrasts.values()) >= 3, (scheme, contrasts)
    assert chromium.execute_script("return document.body.dataset.mdColorScheme") == "slate"


def test_a_restarted_node_is_marked(chromium: Any, page: str) -> None:
    chromium.get(page)
    marked = chromium.execute_script(
        "const p = document.querySelector('[data-scene=ladder]').player;"
        "p.choose(15);"
        "const seen = () => Object.entries(p.cards).filter("
        "([, card]) => card.box.classList.contains('scene-restarted')).map(([name]) => name);"
        "const before = seen();"
        "p.show(p.end);"
        "return [before, seen(), p.cards.n3.second.textContent]"
    )
    assert marked[:2] == [[], ["n3", "n4", "n5"]]
    assert marked[2].endswith("restarted")
