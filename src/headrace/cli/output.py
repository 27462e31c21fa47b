"""Print answers: JSON for programs, tables for people."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from headrace.text.escaping import json_text, shown

_WIDE = 10_000
_GAP = 2
"""Blanks between two columns."""
_NARROW = 12
"""Minimum width of a folded text column. If that is too wide, rows are printed one field per line."""
_PADDED = 100
"""Maximum padding of a column in a pipe or a file."""
_CELL = 500
"""Maximum characters of a cell on a terminal."""


def print_json(answer: object) -> None:
    """Print an indented JSON document."""
    click.echo(json_text(answer, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column named with a leading `>` is right-aligned and never folded. None is `-`.

    A terminal gets folded text, or one field per line if the table does not fit.
    """
    to = console()
    most = _CELL if to.is_terminal else None
    names = [name.lstrip(">") for name in columns]
    right = [name.startswith(">") for name in columns]
    cells = [["-" if cell is None else shown(str(cell), most) for cell in row] for row in rows]
    natural = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if to.is_terminal:
        widths = fit(natural, right, to.width - _GAP * (len(columns) - 1))
    else:
        # A long name shifts only its own row.
        widths = [min(width, _PADDED) for width in natural]
    if widths is None:
        click.echo("\n".join(_fields(names, cells, to.width)))
        return
    rule = "─" * (sum(widths) + _GAP * (len(widths) - 1))
    lines = [_line(names, widths, right), rule]
    for row in cells:
        lines += _folded(row, widths, right) if to.is_terminal else (_line(row, widths, right),)
    click.echo("\n".join(lines))


def fit(natural: Sequence[int], right: Sequence[bool], room: int) -> list[int] | None:
    """Return column widths within `room`, or None. The widest text columns shrink first."""
    widths = list(natural)
    while (over := sum(widths) - room) > 0:
        widest = max((width for width, is_right in zip(widths, right, strict=True) if not is_right), default=0)
        if widest <= _NARROW:
            return None
        wide = [at for at, width in enumerate(widths) if width == widest and not right[at]]
        next_width = max(
            [width for width, is_right in zip(widths, right, strict=True) if not is_right and width < widest]
            + [_NARROW, widest - -(-over // len(wide))]
        )
        for at in wide:
            widths[at] = next_width
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        blanks = " " * (width - cell_len(cell))
        padded.append(blanks + cell if is_right else cell + blanks)
    return (" " * _GAP).join(padded).rstrip()


def _folded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterable[str]:
    to = console()
    folded = [
        [cell] if cell_len(cell) <= width else [line.plain for line in Text(cell).wrap(to, width)]
        for cell, width in zip(cells, widths, strict=True)
    ]
    return (_line(parts, widths, right) for parts in zip_longest(*folded, fillvalue=""))


def _fields(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterable[str]:
    label = max(map(cell_len, names))
    for number, row in enumerate(rows):
        if number:
            yield "─" * width
        for name, cell in zip(names, row, strict=True):
            yield from _folded([name, cell], [label, max(_NARROW, width - label - _GAP)], [False, False])


def console() -> Console:
    """Return a console, of unlimited width for a pipe or a file."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_WIDE)
