"""The plots of docs/benchmarks.md, as SVG, from the table of ratios on that page."""

import math
import re
from pathlib import Path

PAGE = Path(__file__).parent / "benchmarks.md"
ROW = re.compile(
    r"^\| (?P<case>\d[^|]*?) \| (?P<produce>[\d.]+ to [\d.]+) \| (?P<consume>[\d.]+ to [\d.]+) \|$", re.MULTILINE
)
LEFT, WIDTH, STEP, TOP = 170, 720, 34, 56
TICKS = (0.5, 0.75, 1.0, 1.5, 2.0)
STYLE = (
    "text{font:14px sans-serif;fill:#24292f}.tick{font-size:12px;fill:#57606a}.title{font-weight:600;font-size:15px}"
)


def plot(column: str) -> str:
    """Return a plot of the ranges in a column of the table, `produce` or `consume`, on a logarithmic axis."""
    rows = list(ROW.finditer(PAGE.read_text("utf-8")))
    height = TOP + STEP * len(rows) + 40
    bottom = height - 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>Ratio to Apache Kafka, {column}: the lowest and the highest of all runs</title>",
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="16" y="28">{column.capitalize()}: throughput as a ratio to Apache Kafka</text>',
    ]
    for tick in TICKS:
        color, width = ("#24292f", 2) if tick == 1 else ("#d0d7de", 1)
        x = _x(tick)
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{TOP - 12}" y2="{bottom}" stroke="{color}" stroke-width="{width}"/>',
            f'<text class="tick" x="{x}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>',
        ]
    for number, row in enumerate(rows):
        low, high = (float(each) for each in row[column].split(" to "))
        y = TOP + STEP * number
        parts += [
            f'<text x="16" y="{y + 13}">{row["case"]}</text>',
            f'<rect x="{_x(low)}" y="{y}" width="{round(_x(high) - _x(low), 1)}" height="16" rx="4" fill="#0e7490"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _x(ratio: float) -> float:
    low, high = math.log(TICKS[0]), math.log(TICKS[-1])
    return round(LEFT + (WIDTH - LEFT - 30) * (math.log(ratio) - low) / (high - low), 1)
