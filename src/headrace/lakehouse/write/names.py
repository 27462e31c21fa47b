"""Column names of typed tables: one column for each field, whatever the field is called.

The rule is injective and needs nothing but the names that a table has, so that every task and every later run finds
the same column for a field:

1. A character that Delta refuses becomes `_x` and its code in four or more hexadecimal digits and `_`, as SQL/XML
   escapes it: `a b` is `a_x0020_b`.
2. A field with the name of one of the archive's own columns has `value_` before it: `offset` is `value_offset`.
3. Where a table has a column of the same name in another case, the name ends in `_` and eight digits of its SHA-256.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Final

from headrace.lakehouse.write.table import COLUMNS

_OWN: Final = frozenset(name.casefold() for name in COLUMNS.names)
PREFIX: Final = "value_"
LONGEST: Final = 200
"""Characters of a column's name: it is in every file and every commit."""
REFUSED: Final = re.compile("[ ,;{}()\n\t=]")
"""What Delta allows in no column's name."""
# The same, what no terminal shows, and what UTF-8 cannot write.
_ODD: Final = re.compile(f"{REFUSED.pattern[:-1]}\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# A name that has an escape in it already: its underscore is escaped, so that two fields never share a column.
_ESCAPE: Final = re.compile("_(?=x(?:[0-9a-f]{4,6})?_)")
_DIGITS: Final = 8


def folded(name: str) -> str:
    """The form in which names that differ in case only are the same."""
    return name.casefold()


def _code(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04x}_"


def _digest(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()[:_DIGITS]


def plain_name(field: str, *, own: bool = True) -> str:
    """The column's name by rules 1 and 2.

    Args:
        field: the field's name.
        own: whether the archive's own columns are next to it, which they are not inside a struct.

    Raises:
        ValueError: it is too long.
    """
    _check(field)
    name = _ODD.sub(_code, _ESCAPE.sub(_code, field)) or "_x_"
    rest = name
    while own and rest.casefold().startswith(PREFIX):
        rest = rest[len(PREFIX) :]
    if own and rest.casefold() in _OWN:
        name = PREFIX + name
    before, _, digits = name.rpartition("_")
    if len(digits) == _DIGITS and digits == _digest(before):
        name = f"{before}_x005f_{digits}"  # it would be another field's by rule 3
    _check(name)
    return name


class Names:
    """The columns of a table, or of a struct, by which fields find theirs."""

    def __init__(self, columns: Iterable[str], *, own: bool = True) -> None:
        """`own`: whether the archive's own columns are next to them."""
        self._own = own
        self._columns: set[str] = set()
        self._folded: set[str] = set()
        for name in columns:
            self.add(name)

    def add(self, column: str) -> None:
        """There is a column more."""
        self._columns.add(column)
        self._folded.add(folded(column))

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def column(self, field: str) -> str:
        """The column of a field, whether there is one or not.

        Raises:
            ValueError: no name can be given to it.
        """
        name = plain_name(field, own=self._own)
        if name not in self._columns and folded(name) in self._folded:
            name = f"{name}_{_digest(name)}"
            if name not in self._columns and folded(name) in self._folded:
                raise ValueError(f"field {field!r}: two other fields have its column {name!r}")
        return name


def assigned(fields: Collection[str], columns: Iterable[str], *, own: bool = True) -> dict[str, str]:
    """Columns of fields that stand next to each other: those of `columns` first, then new ones in their order.

    Raises:
        ValueError: no name can be given to one of them.
    """
    names = Names(columns, own=own)
    found = {}
    for field in fields:
        found[field] = names.column(field)
        names.add(found[field])
    return found


def _check(name: str) -> None:
    if len(name) > LONGEST:
        raise ValueError(f"field {name[:40]!r}... has a name of {len(name)} characters, a column has at most {LONGEST}")
