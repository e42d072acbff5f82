"""A picture of one chaos run: when leases were valid, with their tokens, and the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tests.support.faults.nemesis import Fault
from tests.support.judges.fight import Hold
from tools.benchmarks.svg import STYLE

_WIDTH, _ROW, _LEFT, _TOP = 1000, 22, 210, 70
_COLOURS = 6
_LABEL_PX = 15


def timeline(
    title: str,
    holds: Mapping[str, Sequence[Hold]],
    faults: Sequence[Fault],
    *,
    begin: float,
    end: float,
) -> str:
    """Return an SVG: a row for each key and each fault that is under way between two moments.

    Args:
        title: What was run.
        holds: Leases by key; a lease is labelled with the last digits of its token.
        faults: Those that were struck.
        begin: Seconds on the clock of both.
        end: The same.
    """
    seen = {
        key: [hold for hold in of_key if hold.until > begin and hold.won_at < end]
        for key, of_key in holds.items()
    }
    keys = [key for key in sorted(seen) if seen[key]]
    struck = [fault for fault in faults if fault.ended > begin and fault.began < end]
    names = list(dict.fromkeys(fault.name for fault in struck))
    height = _TOP + _ROW * (len(keys) + len(names) + 2) + 30

    def at_x(moment: float) -> float:
        share = (min(max(moment, begin), end) - begin) / (end - begin)
        return _LEFT + (_WIDTH - _LEFT - 20) * share

    parts = [
        _text(16, 26, title, "title"),
        _text(16, 46, "seconds; numbers: last digits of the token"),
    ]
    for second in range(int(end - begin) + 1):
        x = at_x(begin + second)
        line = f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 24}"/>'
        parts.append(line)
        if second % 5 == 0:
            parts.append(_text(x, height - 8, str(second), "faint middle"))
    for row, key in enumerate(keys):
        y = _TOP + row * _ROW
        parts.append(_text(_LEFT - 8, y + 15, key[-30:], "faint end"))
        for number, hold in enumerate(sorted(seen[key], key=lambda hold: hold.token)):
            x, until = at_x(hold.won_at), at_x(hold.until)
            colour = number % _COLOURS
            told = f"token {hold.token}, process {hold.who}"
            parts.append(
                f'<rect class="f{colour}" x="{x:.1f}" y="{y + 2}" height="{_ROW - 5}" rx="2" '
                f'width="{max(until - x, 1.5):.1f}"><title>{told}</title></rect>'
            )
            if until - x > _LABEL_PX:
                parts.append(_text(x + 2, y + 15, f"{hold.token % 100:02}", "on"))
    for row, name in enumerate(names, start=len(keys) + 1):
        y = _TOP + row * _ROW
        parts.append(_text(_LEFT - 8, y + 15, name, "end"))
        for fault in struck:
            if fault.name == name:
                x, width = at_x(fault.began), at_x(fault.ended) - at_x(fault.began)
                parts.append(
                    f'<rect class="f7" x="{x:.1f}" y="{y + 5}" height="{_ROW - 11}" rx="2" '
                    f'width="{max(width, 2.0):.1f}"/>'
                )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE} .on {{ fill: var(--paper); "
        f"font-size: 10px }}</style>\n"
        f'<rect width="{_WIDTH}" height="{height}" rx="6" style="fill: var(--paper)"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, classes: str = "faint") -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
