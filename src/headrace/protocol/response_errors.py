"""Finds the error codes in a response."""

from collections.abc import Callable, Iterator
from typing import Any

from headrace.protocol.generated_source import Source
from headrace.protocol.messages import TABLES
from headrace.protocol.notation import Structure

Find = Callable[[Any], set[int] | None]
FindInPieces = Callable[[Any, set[int]], Iterator[None]]
_FIELDS = frozenset({"error_code", "partition_error_code"})
"""AddPartitionsToTxn has a name of its own for it. The error of a topic's configs in CreateTopics is not one: the topic
is created."""


def _has_errors(structure: Structure) -> bool:
    return any(field.name in _FIELDS or (field.struct and _has_errors(field.struct)) for field in structure.fields)


def _emit(source: Source, structure: Structure, name: str, *, pieces: bool) -> None:
    for field in structure.fields:
        if field.name in _FIELDS:
            source.indent(f"if {name}.{field.name}:")
            if not pieces:
                source.line("found = found or set()")
            source.line(f"found.add({name}.{field.name})")
            source.dedent()
        elif field.struct is not None and field.is_array and _has_errors(field.struct):
            element = source.local("each")
            source.indent(f"for {element} in {name}.{field.name} or ():")
            if pieces:
                source.line("yield")
            _emit(source, field.struct, element, pieces=pieces)
            source.dedent()


def _finder(structure: Structure) -> Find:
    source = Source()
    source.line("found = None")
    _emit(source, structure, "m", pieces=False)
    source.line("return found")
    find: Find = source.compile("def find(m):", f"errors of {structure.name}")
    return find


def _finder_in_pieces(structure: Structure) -> FindInPieces:
    source = Source()
    _emit(source, structure, "m", pieces=True)
    source.line("yield")
    find: FindInPieces = source.compile("def find(m, found):", f"errors of {structure.name} in pieces")
    return find


def _root(response: type[Any]) -> Structure:
    [root] = [table.root for table in TABLES if table.root.name == response.__name__]
    return root


class _Finders(dict[type[Any], Find]):
    def __missing__(self, response: type[Any]) -> Find:
        find = self[response] = _finder(_root(response))
        return find


class _FindersInPieces(dict[type[Any], FindInPieces]):
    def __missing__(self, response: type[Any]) -> FindInPieces:
        find = self[response] = _finder_in_pieces(_root(response))
        return find


FINDERS_IN_PIECES = _FindersInPieces()
"""Class of a response -> generator that adds its error codes to a set."""
FINDERS = _Finders()
"""Class of a response -> function that returns its error codes, or None."""
