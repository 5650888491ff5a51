"""HTML for notebooks: tables, and the learning curve of a run as an inline SVG. Everything that is not a number is escaped."""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from proxrl.common.numbers import format_number
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN, read_lines

Point: TypeAlias = tuple[float, float]

# More points than this are averaged in groups: the curve is small.
MOST_POINTS = 200
WIDTH, HEIGHT = 480, 180
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 24  # margins, in which the numbers of the axes are


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column of its rows is a heading too. Without `head`, it has no line of headings."""
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"] if head else []
    for first, *rest in rows:
        cells = "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in rest)
        lines.append(f'<tr><th style="text-align:left">{html.escape(first)}</th>{cells}</tr>')
    return f"<table>{''.join(lines)}</table>"


def return_curve(path: Path) -> list[Point]:
    """Return the steps and returns that a run has logged, averaged in groups of equal size if there are many."""
    points = [
        (float(entry["step"]), float(entry[RETURN]))
        for entry in read_lines(RunFolder(path))
        if _is_number(entry["step"]) and _is_number(entry.get(RETURN))
    ]
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)] if points else []
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def curve_svg(points: Sequence[Point], title: str) -> str:
    """Return a curve with the ends of its axes, in the text color of the page; nothing if there are no points."""
    if not points:
        return ""
    last, low, high = points[-1][0], min(y for _, y in points), max(y for _, y in points)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    placed = [
        (LEFT + width * x / max(last, 1), TOP + height * ((high - y) / (high - low) if high > low else 0.5)) for x, y in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    labels = [
        (LEFT - 6, TOP + 5, "end", format_number(high)),
        (LEFT - 6, HEIGHT - BOTTOM, "end", format_number(low) if high > low else ""),
        (LEFT, HEIGHT - 6, "start", "0"),
        (WIDTH - RIGHT, HEIGHT - 6, "end", f"{last:,.0f} steps"),
    ]
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels)
    axes = f"M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"
    return (
        f'<svg role="img" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12" fill="currentColor">'
        f"<title>{html.escape(title)}</title>"
        f'<path d="{axes}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>{texts}'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="2" stroke-linejoin="round"/>'
        f'<circle cx="{placed[-1][0]:.1f}" cy="{placed[-1][1]:.1f}" r="3" fill="#1f77b4"/></svg>'
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
