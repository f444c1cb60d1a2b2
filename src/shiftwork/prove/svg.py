"""Draws small SVG charts over time. Grey text is readable on light and dark backgrounds."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEFT, RIGHT, WIDTH, HEIGHT = 70, 20, 720, 130
GAP = 40
LABEL = 12
BLUE, RED = "#2f6db5", "#c0504d"


class Mark(NamedTuple):
    """An occurrence and its duration."""

    at_sec: float
    lasted_sec: float
    name: str


class Series(NamedTuple):
    """One value over time."""

    name: str
    points: Sequence[tuple[float, float]]
    """Seconds and values."""


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        f'<g font-family="sans-serif" font-size="{LABEL}" fill="#808080">',
        f"<title>{html.escape(title)}</title>",
        *parts,
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1.0 else f' opacity="{opacity:g}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{shade}/>'


def charts(title: str, series: Sequence[Series], marks: Sequence[Mark] = ()) -> str:
    """Draw charts below each other with a common time axis; marks are drawn above and in the first chart."""
    end = max((point[0] for each in series for point in each.points), default=0.0) or 1.0
    names = sorted({mark.name for mark in marks})
    top = 20.0 + LABEL * len(names)
    parts = _marks(marks, names, end, top)
    for each in series:
        parts += _chart(each, end, top)
        top += HEIGHT + GAP
    return document(LEFT + WIDTH + RIGHT, top, title, parts)


def _x(seconds: float, end: float) -> float:
    return LEFT + WIDTH * seconds / end


def _marks(marks: Sequence[Mark], names: Sequence[str], end: float, top: float) -> list[str]:
    """Draw a row per kind of mark; each mark continues as a band in the chart."""
    parts = [text(LEFT - 6, 20 + LABEL * row, name, anchor="end") for row, name in enumerate(names)]
    for mark in marks:
        x, y = _x(mark.at_sec, end), 12.0 + LABEL * names.index(mark.name)
        wide = max(2.0, WIDTH * mark.lasted_sec / end)
        parts.append(bar(x, y, wide, LABEL - 3, RED))
        parts.append(bar(x, top, wide, HEIGHT, RED, opacity=0.15))
    return parts


def _chart(series: Series, end: float, top: float) -> list[str]:
    most = max((value for _, value in series.points), default=0.0) or 1.0
    bottom = top + HEIGHT
    places = " ".join(f"{_x(at, end):.1f},{bottom - HEIGHT * value / most:.1f}" for at, value in series.points)
    return [
        f'<path d="M{LEFT},{top} V{bottom} H{LEFT + WIDTH}" fill="none" stroke="#808080" stroke-width="0.5"/>',
        f'<polyline points="{places}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>',
        text(LEFT - 6, top + LABEL, number(most), anchor="end"),
        text(LEFT - 6, bottom, "0", anchor="end"),
        text(LEFT, bottom + LABEL + 4, series.name),
        text(LEFT + WIDTH, bottom + LABEL + 4, _time(end), anchor="end"),
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
