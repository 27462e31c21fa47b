"""Answers on standard output: JSON for programs, tables for people."""

import json
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def print_json(answer: object) -> None:
    """One JSON document, indented."""
    click.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; a column named with a leading `>` is aligned right. None shows as `-`.

    On a terminal long cells are folded; into a pipe or a file every row is one line, however long.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console().print(table)


def console() -> Console:
    """The console that tables are printed on."""
    made = Console(highlight=False, markup=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_WIDE)
