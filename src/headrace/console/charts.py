"""SVG paths of charts. Pure."""

from collections.abc import Sequence
from math import isnan

Values = Sequence[float]


def top(series: Sequence[Values]) -> float:
    """Return a round axis maximum at or above every value; at least 1."""
    most = max((value for values in series for value in values if not isnan(value)), default=0.0)
    if most <= 1:
        return 1.0
    power = 10.0 ** (len(str(int(most))) - 1)
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= most)


def line(values: Values, width: int, height: int, most: float, count: int) -> str:
    """Return a line path with the newest value at the right edge and gaps for NaN.

    `count` values fill the width. `most` is the value at the upper edge.
    """
    return " ".join(
        ("M" if begins else "L") + f"{x:.1f} {y:.1f}" for begins, x, y in _points(values, width, height, most, count)
    )


def area(values: Values, width: int, height: int, most: float, count: int) -> str:
    """Return the path of the area below that line."""
    parts: list[str] = []
    last = 0.0
    for begins, x, y in _points(values, width, height, most, count):
        if begins:
            if parts:
                parts.append(f"L{last:.1f} {height}Z")
            parts.append(f"M{x:.1f} {height}")
        parts.append(f"L{x:.1f} {y:.1f}")
        last = x
    if parts:
        parts.append(f"L{last:.1f} {height}Z")
    return "".join(parts)


def _points(values: Values, width: int, height: int, most: float, count: int) -> list[tuple[bool, float, float]]:
    values = values[-count:]
    step = width / max(1, count - 1)
    left = width - step * (len(values) - 1)
    found: list[tuple[bool, float, float]] = []
    begins = True
    room = height - 2
    for number, value in enumerate(values):
        if isnan(value):
            begins = True
            continue
        found.append((begins, left + number * step, height - 1 - min(1.0, value / (most or 1.0)) * room))
        begins = False
    return found


SPARK_WIDTH, SPARK_HEIGHT, SPARK_COUNT = 96, 24, 60
"""A small chart without axes: two minutes."""


def spark(values: Values) -> str:
    """Return the path of a small chart."""
    values = values[-SPARK_COUNT:]
    most = max((value for value in values if not isnan(value)), default=0.0)
    return line(values, SPARK_WIDTH, SPARK_HEIGHT, most or 1.0, SPARK_COUNT)
