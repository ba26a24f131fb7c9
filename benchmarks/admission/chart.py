# SPDX-License-Identifier: Apache-2.0
"""How is a value over time drawn, as SVG and without a library?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 44, 56
COLOURS = ("#1965b0", "#dc050c", "#b178a6", "#4eb265")
TRUTH = "#777777"
FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Curve:
    """One line."""

    name: str
    points: Sequence[tuple[float, float]]
    is_truth: bool = False  # grey and dashed: what the others try to find


def draw(title: str, unit: str, curves: Sequence[Curve]) -> str:
    """A chart of curves over seconds."""
    end = max(time for curve in curves for time, _ in curve.points)
    most = max(value for curve in curves for _, value in curve.points)
    x_step, y_step = _step(end, 8), _step(most, 5)
    most = y_step * math.ceil(most / y_step)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(time: float) -> float:
        return LEFT + wide * time / end

    def y(value: float) -> float:
        return TOP + high * (1 - value / most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-family="sans-serif" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="37" {FONT} fill="{TRUTH}">{escape(unit)}</text>',
    ]
    for value in _ticks(most, y_step):
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" {FONT} text-anchor="end">{value:g}</text>'
        )
    for time in _ticks(end, x_step):
        parts.append(
            f'<text x="{x(time):.1f}" y="{HEIGHT - BOTTOM + 17}" {FONT} '
            f'text-anchor="middle">{time:g} s</text>'
        )
    colours = iter(COLOURS * len(curves))
    at = float(LEFT)
    for curve in curves:
        colour = TRUTH if curve.is_truth else next(colours)
        dash = ' stroke-dasharray="5 4"' if curve.is_truth else ""
        path = "L".join(f"{x(time):.1f} {y(value):.1f}" for time, value in _steps(curve.points))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        parts.append(
            f'<path d="M{at:.0f} {HEIGHT - 18}h22" stroke="{colour}" stroke-width="3"{dash}/>'
            f'<text x="{at + 28:.0f}" y="{HEIGHT - 14}" {FONT}>{escape(curve.name)}</text>'
        )
        at += 48 + 7 * len(curve.name)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Only where the value changes: the corners of the line."""
    kept: list[tuple[float, float]] = []
    for number, (time, value) in enumerate(points):
        is_last = number + 1 == len(points)
        if kept and kept[-1][1] == value and not is_last and points[number + 1][1] == value:
            continue
        kept.append((time, value))
    return kept


def _step(most: float, count: int) -> float:
    """A round distance of about so many ticks."""
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _ticks(most: float, step: float) -> list[float]:
    return [step * number for number in range(int(most / step + 1e-9) + 1)]
