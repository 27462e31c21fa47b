"""Label the cells of tables by their columns. Pure.

On narrow screens the style sheet shows each row as a block, in which a cell has its column's name before it. Templates
write plain tables. The labels are derived from the column headers, so each name exists once.
"""

import re
from html import escape, unescape

_HEAD = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
_COLUMN = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_SPANS = re.compile(r'<span aria-hidden="true">.*?</span>|<span class="hidden">.*?</span>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_CELL = re.compile(r'<(tr|th|td)\b( scope="row" class="n")?')


def labelled(table: str) -> str:
    """Return the inside of a table with the attribute `data-l` at its cells, and at row headers that are numbers.

    `table` is trusted HTML: values in it are escaped, so a `<td` in it is a cell. Cells must not span columns.
    """
    table = str(table)  # a plain string: `+` of Jinja's markup would escape again
    head = _HEAD.search(table)
    if head is None:
        return table
    columns = [_name(column) for column in _COLUMN.findall(head[1])]
    place = -1

    def cell(found: re.Match[str]) -> str:
        nonlocal place
        if found[1] == "tr":
            place = -1
            return found[0]
        place += 1
        column = columns[place] if place < len(columns) else ""
        shown = column and (found[1] == "td" or found[2])
        return f'{found[0]} data-l="{escape(column)}"' if shown else found[0]

    return table[: head.end()] + _CELL.sub(cell, table[head.end() :])


def _name(column: str) -> str:
    """Return the text of a column header, without sort arrows and text for screen readers."""
    return " ".join(unescape(_TAG.sub("", _SPANS.sub("", column))).split())
