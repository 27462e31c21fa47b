"""Tables for terminals that are Markdown, too: what is printed can go into a page as it is."""

from collections.abc import Sequence

Cell = str | float | None


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of equal width: words to the left, numbers to the right. None is a cell that could not be measured."""
    lines = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numeric = [all(not isinstance(row[column], str) for row in rows) for column in range(len(head))]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    lines.insert(1, rule)
    return "\n".join(
        "| "
        + " | ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        + " |"
        for line in lines
    )


def ratio(value: float | None, yardstick: float | None) -> float | None:
    """Ratio to the baseline; None without a baseline."""
    return value / yardstick if value is not None and yardstick else None


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
