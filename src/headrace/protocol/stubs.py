"""Writes messages.pyi for type checkers: `python -m headrace.protocol.stubs`."""

from pathlib import Path
from typing import Final

from headrace.protocol.messages import TABLES
from headrace.protocol.notation import Field, MessageTable, Structure

TARGET: Final = Path(__file__).with_name("messages.pyi")

_HEAD: Final = """\
# Written by `python -m headrace.protocol.stubs` from the tables; not edited by hand.
from typing import ClassVar
from uuid import UUID

import msgspec

from headrace.protocol.message import Chunk as Chunk
from headrace.protocol.message import Message as Message
from headrace.protocol.message import Records as Records
from headrace.protocol.notation import MessageTable

TABLES: list[MessageTable]
REQUESTS: dict[int, type[Message]]
RESPONSES: dict[int, type[Message]]
"""

_PRIMITIVES: Final = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "Records",
    "uuid": "UUID",
}


def write_stubs() -> str:
    """Return the text of messages.pyi."""
    return _HEAD + "".join("\n" + "\n".join(_message(table)) + "\n" for table in TABLES)


def _message(table: MessageTable) -> list[str]:
    lines = [f"class {table.root.name}(Message):"]
    lines += [f"    API_KEY: ClassVar[int] = {table.api_key}"]
    lines += [f"    VERSIONS: ClassVar[tuple[int, int]] = ({table.versions.low}, {table.versions.high})"]
    lines += [f"    FLEXIBLE_FROM: ClassVar[int] = {table.flexible_from}"]
    for structure in table.root.nested():
        lines += ["", f"    class {structure.name}(msgspec.Struct):"]
        lines += ["    " + line for line in _members(structure, table)]
    return [*lines, "", *_members(table.root, table)]


def _members(structure: Structure, table: MessageTable) -> list[str]:
    lines: list[str] = []
    for field in structure.fields:
        lines += _attribute(field, table)
    if not structure.fields:
        return ["    def __init__(self) -> None: ..."]
    lines += ["    def __init__(", "        self,", "        *,"]
    lines += [f"        {field.name}: {_annotation(field, table)} = ...," for field in structure.fields]
    return [*lines, "    ) -> None: ..."]


def _attribute(field: Field, table: MessageTable) -> list[str]:
    """Return a field's declaration. Decoded records are views, and all buffers can be encoded."""
    if field.kind != "records":
        return [f"    {field.name}: {_annotation(field, table)}"]
    return [
        "    @property",
        f"    def {field.name}(self) -> memoryview | None: ...",
        f"    @{field.name}.setter",
        f"    def {field.name}(self, value: Records | None) -> None: ...",
    ]


def _annotation(field: Field, table: MessageTable) -> str:
    kind = f"{table.root.name}.{field.kind}" if field.struct is not None else _PRIMITIVES.get(field.kind, "int")
    if field.is_array:
        kind = f"list[{kind}]"
    return kind + " | None" if field.may_be_none else kind


if __name__ == "__main__":
    TARGET.write_text(write_stubs(), encoding="utf-8")
