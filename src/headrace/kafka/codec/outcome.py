"""Finds the errors in a response, wherever they stand in it."""

from collections.abc import Callable
from typing import Any

from headrace.kafka.codec.messages import TABLES
from headrace.kafka.codec.notation import Structure
from headrace.kafka.codec.source import Source

Find = Callable[[Any], set[int] | None]
_FIELD = "error_code"


def _has_errors(structure: Structure) -> bool:
    return any(field.name == _FIELD or (field.struct and _has_errors(field.struct)) for field in structure.fields)


def _emit(source: Source, structure: Structure, name: str) -> None:
    for field in structure.fields:
        if field.name == _FIELD:
            source.indent(f"if {name}.{_FIELD}:")
            source.line("found = found or set()")
            source.line(f"found.add({name}.{_FIELD})")
            source.dedent()
        elif field.struct is not None and field.is_array and _has_errors(field.struct):
            element = source.local("each")
            source.indent(f"for {element} in {name}.{field.name} or ():")
            _emit(source, field.struct, element)
            source.dedent()


def _finder(structure: Structure) -> Find:
    source = Source()
    source.line("found = None")
    _emit(source, structure, "m")
    source.line("return found")
    find: Find = source.compile("def find(m):", f"errors of {structure.name}")
    return find


class _Finders(dict[type[Any], Find]):
    """Response -> its finder, compiled when first asked for."""

    def __missing__(self, response: type[Any]) -> Find:
        [root] = [table.root for table in TABLES if table.root.name == response.__name__]
        find = self[response] = _finder(root)
        return find


FINDERS = _Finders()
"""Class of a response -> what tells the error codes other than 0 in one, each once; None: there are none."""
