"""The benchmark's picture, an SVG written by hand: append by length of the history, and 64 tasks at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from bench.systems import SYSTEMS

if TYPE_CHECKING:
    from bench.page import Figures

WIDTH, PANEL, GAP, LEFT = 960, 300, 12, 64
PLOT_HEIGHT, BAR = 190, 18
FONT = 'font-family="system-ui, sans-serif" font-size="12"'
COLOURS = {
    "floor_": "#8a8f98",
    "kept_": "#4a4f57",
    "segue_": "#0b6e4f",
    "agents_": "#2f6fde",
    "langgraph_": "#b4540a",
    "adk_": "#8e44ad",
    "agno_": "#c2185b",
    "json_file": "#5d4037",
}
TITLES = {"sqlite": "SQLite", "files": "files", "postgres": "PostgreSQL", "mysql": "MariaDB", "redis": "Redis"}


def picture(shown: Figures) -> str:
    """The whole picture."""
    lines, below = _panels(shown)
    bars, height = _bars(shown, below)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *lines,
        *bars,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _colour(name: str) -> str:
    return next((colour for prefix, colour in COLOURS.items() if name.startswith(prefix)), "#333333")


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222222", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


# Lines: one panel an engine, both axes logarithmic, one scale for all.


def _panels(shown: Figures) -> tuple[list[str], int]:
    points = {
        name: [
            (head, seconds * 1e3)
            for head in shown.heads
            if (seconds := shown.seconds(name, f"append at {head}")) is not None
        ]
        for name in shown.names
    }
    values = [value for found in points.values() for _, value in found]
    if not values:
        return [], 0
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    parts = [_text(16, 24, "Append a turn of four messages: ms by messages already in the session", bold=True)]
    engines = [engine for engine in TITLES if any(points[n] for n in shown.names if SYSTEMS[n].engine == engine)]
    for place, engine in enumerate(engines):
        x, y = LEFT + place % 3 * PANEL, 48 + place // 3 * (PLOT_HEIGHT + 104)
        mine = {name: found for name, found in points.items() if SYSTEMS[name].engine == engine and found}
        parts += _panel(TITLES[engine], mine, shown.heads, (low, max(high, low + 1)), (x, y))
    rows = -(-len(engines) // 3)
    return parts, 48 + rows * (PLOT_HEIGHT + 104)


def _panel(
    title: str,
    lines: dict[str, list[tuple[int, float]]],
    heads: list[int],
    scale: tuple[int, int],
    corner: tuple[int, int],
) -> list[str]:
    (low, high), (x, y), width = scale, corner, PANEL - GAP - 60
    first, last = math.log10(heads[0]), math.log10(max(heads[-1], heads[0] + 1))

    def across(head: int) -> float:
        return x + (math.log10(head) - first) / (last - first) * width

    def up(value: float) -> float:
        return y + PLOT_HEIGHT - (math.log10(value) - low) / (high - low) * PLOT_HEIGHT

    parts = [_text(x, y - 6, title, bold=True)]
    for power in range(low, high + 1):
        label = f"{10**power:,}" if power >= 0 else f"{10**power:g}"
        level = up(10**power)
        parts.append(f'<line x1="{x}" x2="{x + width}" y1="{level:.1f}" y2="{level:.1f}" stroke="#e3e5e8"/>')
        parts.append(_text(x - 6, level + 4, label, anchor="end", colour="#666666"))
    parts += [
        _text(across(head), y + PLOT_HEIGHT + 16, f"{head:,}", anchor="middle", colour="#666666") for head in heads
    ]
    for name, found in lines.items():
        path = " ".join(f"{across(head):.1f},{up(value):.1f}" for head, value in found)
        heavy = 2.6 if name.startswith("segue_") else 1.6
        dashes = ' stroke-dasharray="4 3"' if name.startswith(("floor_", "kept_")) else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_colour(name)}" stroke-width="{heavy}"{dashes}/>')
    return [*parts, *_legend(list(lines), x, y + PLOT_HEIGHT + 34)]


def _legend(names: list[str], x: int, y: int) -> list[str]:
    parts = []
    for place, name in enumerate(names):
        left, line = x + place % 2 * 130, y + place // 2 * 15
        parts.append(
            f'<line x1="{left}" x2="{left + 16}" y1="{line - 4}" y2="{line - 4}" stroke="{_colour(name)}" '
            'stroke-width="2.6"/>'
        )
        parts.append(_text(left + 21, line, _short(name), colour="#444444"))
    return parts


def _short(name: str) -> str:
    kinds = {
        "floor_": "by hand",
        "kept_": "by hand, all kept",
        "segue_": "Segue",
        "agents_": "Agents SDK",
        "langgraph_": "LangGraph",
        "adk_": "ADK",
        "agno_": "Agno",
        "json_file": "JSON rewritten",
    }
    return next(short for prefix, short in kinds.items() if name.startswith(prefix))


# Bars: turns a second of many tasks, each with a session of its own.


def _bars(shown: Figures, top: int) -> tuple[list[str], int]:
    cases = [case for case in shown.cases(is_one=False) if "tasks" in case]
    if not cases:
        return [], max(top, 40)
    rates = {name: found["per_second"] for name in shown.names if (found := shown.crowd(name, cases[0]))}
    most = max(rates.values(), default=1) or 1
    y = top + 24
    parts = [_text(16, y, f"Turns a second: {cases[0]}", bold=True)]
    y += 12
    for engine in TITLES:
        for name in (name for name in rates if SYSTEMS[name].engine == engine):
            y += BAR
            width = rates[name] / most * (WIDTH - 420)
            parts.append(_text(330, y, SYSTEMS[name].title, anchor="end", colour="#444444"))
            parts.append(f'<rect x="340" y="{y - 10}" width="{width:.1f}" height="12" fill="{_colour(name)}"/>')
            parts.append(_text(346 + width, y, f"{rates[name]:,.0f}"))
        y += 8
    return parts, y + 16
