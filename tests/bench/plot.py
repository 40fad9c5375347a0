"""Lines over a few points, as an SVG of our own making: panels side by side, one scale of height for all."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, GAP = 240, 180, 46, 60, 40
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


class Panel(NamedTuple):
    """`lines`: by name a value for each of `points`; names are the same in all panels."""

    name: str
    points: Sequence[str]
    lines: Mapping[str, Sequence[float]]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The file. Heights go from 0 to a little above the largest value."""
    top = max(1.5, *[value * 1.1 for panel in panels for line in panel.lines.values() for value in line])
    width = LEFT + len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{TOP + HEIGHT + 50}" fill="white"/>',
        _text(LEFT, 20, title, "start"),
    ]
    for number, name in enumerate(panels[0].lines):
        x = LEFT + number * 130
        parts.append(f'<rect x="{x}" y="32" width="12" height="4" fill="{COLOURS[number]}"/>')
        parts.append(_text(x + 18, 38, name, "start"))
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + number * (WIDTH + GAP), top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: int, top: float) -> list[str]:
    xs = [left + WIDTH * (n + 0.5) / len(panel.points) for n in range(len(panel.points))]
    parts = [_text(left + WIDTH / 2, TOP + HEIGHT + 40, panel.name)]
    parts += [_text(x, TOP + HEIGHT + 18, point) for x, point in zip(xs, panel.points, strict=True)]
    step = 0.5 if top <= 4 else 1 if top <= 8 else 5
    for n in range(int(top / step) + 1):
        y = _height(n * step, top)
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(_text(left - 6, y + 4, f"{n * step:g}", "end"))
    for colour, values in zip(COLOURS, panel.lines.values(), strict=False):
        places = [f"{x:.1f},{_height(value, top):.1f}" for x, value in zip(xs, values, strict=True)]
        parts.append(
            f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{_height(value, top):.1f}" r="3" fill="{colour}"/>'
            for x, value in zip(xs, values, strict=True)
        ]
    return parts


def _height(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
