"""Shapes of the drawn pictures: few and large, since a telephone shows them at two thirds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from tools.benchmarks.svg import STYLE

WIDTH = 500
SHOWN_AT = 560
"""Width on a page that has room for it."""

# What lines and boxes are about: held or accepted, down or refused, waiting, and everything else.
_STYLE = """
svg { font-size: 15px; --plain: #6e7781; --good: var(--c3); --bad: var(--c7); --held: var(--c0);
  --waits: var(--c2) }
@media (prefers-color-scheme: dark) { svg { --plain: #8b949e } }
.title { font-size: 17px } .code { font-family: ui-monospace, Menlo, Consolas, monospace }
.small { font-size: 13.5px } .strong { font-weight: 600 }
.plain { --of: var(--plain) } .good { --of: var(--good) } .bad { --of: var(--bad) }
.held { --of: var(--held) } .waits { --of: var(--waits) }
text.good, text.bad, text.held, text.waits { fill: var(--of) }
.box { fill: var(--paper); fill: color-mix(in srgb, var(--of) 14%, var(--paper)) }
.box { stroke: var(--of); stroke-width: 1.5 }
.line { stroke: var(--of); stroke-width: 2 } .head { fill: var(--of) } .dot { fill: var(--of) }
.dashed { stroke-dasharray: 5 4 } .edge { fill: var(--paper); stroke: var(--grid) }
"""


def picture(title: str, description: str, height: int, parts: Iterable[str]) -> str:
    """Return a whole picture.

    Args:
        title: What it shows; also drawn as its heading.
        description: The same content in words, for those who don't see it.
        height: Of a picture that is `WIDTH` wide.
        parts: What is drawn below the heading.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{SHOWN_AT}" height="{height * SHOWN_AT / WIDTH:.0f}" role="img" '
        f'aria-labelledby="title desc">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="desc">{escape(description)}</desc>\n<style>{STYLE}{_STYLE}</style>\n'
        f'<rect class="edge" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    )
    return "\n".join([head, text(18, 31, title, "title"), *parts, "</svg>\n"])


def text(x: float, y: float, said: str, classes: str = "") -> str:
    """Return a text; `classes` are those of the styles."""
    return f'<text class="{classes}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def box(
    x: float, y: float, width: float, height: float, about: str, said: str = "", more: str = ""
) -> str:
    """Return a box of a kind (good, bad, held, waits or plain), with a text or without."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    drawn = f'<rect class="box {about}" {place} rx="5"/>'
    if said:
        drawn += "\n" + text(x + width / 2, y + height / 2 + 5, said, f"middle {more}".strip())
    return drawn


def line(x1: float, y1: float, x2: float, y2: float, about: str) -> str:
    """Return a line; `about` may also say `dashed`."""
    return f'<line class="line {about}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, about: str) -> str:
    """Return a line with a head at its second end."""
    angle = math.atan2(y2 - y1, x2 - x1)
    corners = [
        (x2 - 10 * math.cos(angle + side), y2 - 10 * math.sin(angle + side)) for side in (0.4, -0.4)
    ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x2, y2), *corners])
    shaft = line(x1, y1, x2 - 7 * math.cos(angle), y2 - 7 * math.sin(angle), about)
    return f'{shaft}\n<polygon class="head {about}" points="{points}"/>'


def dot(x: float, y: float, about: str) -> str:
    """Return a moment on a line of time."""
    return f'<circle class="dot {about}" cx="{x:g}" cy="{y:g}" r="6"/>'
