"""Generates the Python that encodes one version of one message.

One precompiled struct writes adjacent fields of fixed width, the next one-byte length and an empty tag section. Record
batches are separate chunks, and are not copied.
"""

from collections.abc import Callable, Iterator
from typing import Any

from headrace.protocol import wire
from headrace.protocol.generated_source import Source
from headrace.protocol.notation import FIXED, ZERO_UUID, Field, MessageTable, Structure

Encode = Callable[[Any, list[Any]], None]
EncodePieces = Callable[[Any, list[Any]], Iterator[None]]
Classes = dict[str, type[Any]]


class Encoded:
    """An array element that is already encoded."""

    __slots__ = ("_element", "data")

    def __init__(self, element: Any, data: bytes) -> None:
        """`element` serves reads of attributes."""
        self._element = element
        self.data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._element, name)


class EncodedArray:
    """An array that is already encoded. It has a length, and iterates over nothing."""

    __slots__ = ("_count", "data")

    def __init__(self, count: int, data: bytes) -> None:
        """`data` has `count` elements, without the count."""
        self._count = count
        self.data = data

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(())


_JOINED_AT_ONCE = 10_000
"""Pieces that are joined in one step of a message that is encoded in pieces."""


def build_encoder(table: MessageTable, version: int, classes: Classes) -> Encode:
    """Return the function `(message, chunks)` that appends a message's body."""
    emitter = _Encoder(version, version >= table.flexible_from, classes)
    emitter.message(table.root)
    encode: Encode = emitter.source.compile("def encode(m, out):", f"encode {table.root.name} v{version}")
    return encode


def build_pieces_encoder(
    table: MessageTable, version: int, classes: Classes, part: Structure | None = None
) -> EncodePieces:
    """As `build_encoder`, but return a generator that yields after each array element. `part`: encode only it."""
    structure = part or table.root
    emitter = _Encoder(version, version >= table.flexible_from, classes, in_pieces=True)
    emitter.message(structure)
    encode: EncodePieces = emitter.source.compile(
        "def encode(m, out):", f"encode {structure.name} v{version} in pieces"
    )
    return encode


class _Encoder:
    def __init__(self, version: int, flexible: bool, classes: Classes, *, in_pieces: bool = False) -> None:
        self.source = Source()
        self._in_pieces = in_pieces
        self._version = version
        self._flexible = flexible
        self._classes = classes
        self._pending: list[tuple[str, str]] = []
        self._write = "w"
        self._depth = 0
        """Nesting depth of arrays of structures."""
        self.source.bind("Encoded", Encoded)
        self.source.bind("EncodedArray", EncodedArray)
        self.source.bind("varint", wire.varint)
        self.source.bind("VARINTS", tuple(wire.varint(value) for value in range(128)))

    def message(self, root: Structure) -> None:
        source = self.source
        source.line("parts = []")
        source.line("w = parts.append")
        if self._in_pieces:
            source.line("yield")
        self._struct(root, "m")
        self._flush()
        source.indent("if parts:")
        source.line('out.append(b"".join(parts))')
        source.dedent()

    # Fixed-width items wait in `_pending`, as (format, expression).

    def _add(self, code: str, expression: str) -> None:
        self._pending.append((code, expression))

    def _flush(self) -> None:
        if not self._pending:
            return
        layout = "".join(code for code, _ in self._pending)
        arguments = ", ".join(expression for code, expression in self._pending if code != "x")
        self._pending = []
        if not arguments:
            self.source.line(f"{self._write}({bytes(len(layout))!r})")
            return
        name = self.source.bind("pack_" + layout.replace("?", "_"), wire.packer(layout))
        self.source.line(f"{self._write}({name}({arguments}))")

    def _branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Write if and else. Both branches write the pending items."""
        waiting = list(self._pending)
        self.source.indent(f"if {condition}:")
        then()
        self._flush()
        self._pending = waiting
        self.source.dedent("else:")
        otherwise()
        self._flush()
        self.source.dedent()

    def _length(self, expression: str, code: str) -> None:
        if not self._flexible:
            self._add(code, expression)
            self._flush()
        elif self._pending:
            waiting = list(self._pending)
            self.source.indent(f"if {expression} < 127:")
            self._add("B", f"{expression} + 1")
            self._flush()
            self._pending = waiting
            self.source.dedent("else:")
            self._flush()
            self.source.line(f"{self._write}(varint({expression} + 1))")
            self.source.dedent()
        else:
            self.source.line(
                f"{self._write}(VARINTS[{expression} + 1] if {expression} < 127 else varint({expression} + 1))"
            )

    def _null(self, code: str) -> None:
        if self._flexible:
            self._add("x", "")
        else:
            self._add(code, "-1")

    def _struct(self, struct: Structure, owner: str) -> None:
        for field in struct.plain(self._version):
            self._field(field, f"{owner}.{field.name}")
        if self._flexible:
            self._tags(struct, owner)

    def _field(self, field: Field, expression: str) -> None:
        if not field.is_array and field.kind in FIXED:
            self._add(FIXED[field.kind], expression + ".bytes" if field.kind == "uuid" else expression)
            return
        value = self.source.local("v")
        self.source.line(f"{value} = {expression}")
        if not field.nullable_in(self._version):
            self._present(field, value)
            return
        code = "b" if self._is_struct(field) else "h" if self._is_string(field) else "i"
        null = (lambda: self._add("b", "-1")) if self._is_struct(field) else (lambda: self._null(code))
        self._branch(f"{value} is None", null, lambda: self._present(field, value))

    @staticmethod
    def _is_struct(field: Field) -> bool:
        return field.struct is not None and not field.is_array

    @staticmethod
    def _is_string(field: Field) -> bool:
        return field.kind == "string" and not field.is_array

    def _present(self, field: Field, value: str) -> None:
        if field.is_array:
            self._array(field, value)
        elif field.struct is not None:
            if field.nullable_in(self._version):
                self._add("b", "1")
            self._struct(field.struct, value)
        elif field.kind == "string":
            self._string(value)
        elif field.kind == "bytes":
            self._length(f"len({value})", "i")
            self.source.line(f"{self._write}({value})")
        else:
            self._records(value)

    def _string(self, value: str) -> None:
        source = self.source
        source.line(f"b = {value}.encode()")
        source.line("n = len(b)")
        self._length("n", "h")
        source.line(f"{self._write}(b)")

    def _records(self, value: str) -> None:
        """Add batches without a copy. A list or tuple of them is their concatenation."""
        source = self.source
        source.line(f"several = isinstance({value}, (list, tuple))")
        source.line(f"n = sum(map(len, {value})) if several else len({value})")
        self._length("n", "i")
        source.indent("if n:")
        source.line('out.append(b"".join(parts))')
        source.line("parts.clear()")
        source.indent("if several:")
        source.line(f"out.extend({value})")
        source.dedent("else:")
        source.line(f"out.append({value})")
        source.dedent()
        source.dedent()

    def _array(self, field: Field, value: str) -> None:
        source = self.source
        if field.kind in FIXED and field.kind not in {"uuid", "bool"}:
            self._flush()
            code = FIXED[field.kind]
            shape = "compact" if self._flexible else "plain"
            name = source.bind(f"{shape}_{code}", getattr(wire.number_arrays(code), shape))
            source.line(f"{self._write}({name}({value}))")
            return
        count = source.local("n")
        source.line(f"{count} = len({value})")
        self._length(count, "i")
        if field.struct is not None:
            source.indent(f"if type({value}) is EncodedArray:")
            source.line(f"{self._write}({value}.data)")
            source.dedent()
        item = source.local("e")
        source.indent(f"for {item} in {value}:")
        if field.struct is not None:
            if self._depth == 0:
                self._encoded(item)
            self._depth += 1
            self._struct(field.struct, item)
            self._depth -= 1
        else:
            self._field(field.element(), item)
        self._flush()
        if self._in_pieces:
            source.line("yield")
            if self._write == "w":
                source.indent(f"if len(parts) > {_JOINED_AT_ONCE}:")
                source.line('out.append(b"".join(parts))')
                source.line("parts.clear()")
                source.dedent()
        source.dedent()

    def _encoded(self, item: str) -> None:
        source = self.source
        source.indent(f"if type({item}) is Encoded:")
        source.line(f"{self._write}({item}.data)")
        if self._in_pieces:
            source.line("yield")
        source.line("continue")
        source.dedent()

    # Tagged fields are written only if they differ from their defaults.

    def _tags(self, struct: Structure, owner: str) -> None:
        fields = struct.tagged(self._version)
        if not fields:
            self._add("x", "")
            return
        flags = [(field, self.source.local("t")) for field in fields]
        for field, flag in flags:
            self.source.line(f"{flag} = {self._differs(field, f'{owner}.{field.name}')}")
        self._branch(
            " or ".join(flag for _, flag in flags),
            lambda: self._write_tags(flags, owner),
            lambda: self._add("x", ""),
        )

    def _differs(self, field: Field, expression: str) -> str:
        if self._is_struct(field) and field.struct is not None:
            if field.nullable_in(self._version):
                return f"{expression} is not None"
            default = self.source.bind(f"DEFAULT_{field.kind}", _shared_default(self._classes[field.kind]))
            return f"{expression} is not None and {expression} != {default}"
        if field.default is None:
            return f"{expression} is not None"
        if field.is_array or field.kind in {"string", "bytes", "bool"}:
            return f"bool({expression})"
        if field.kind == "uuid":
            return f"{expression} != {self.source.bind('ZERO_UUID', ZERO_UUID)}"
        return f"{expression} != {field.default}"

    def _write_tags(self, flags: list[tuple[Field, str]], owner: str) -> None:
        source = self.source
        self._flush()
        source.line(f"{self._write}(varint({' + '.join(flag for _, flag in flags)}))")
        for field, flag in flags:
            source.indent(f"if {flag}:")
            outer, inner = self._write, source.local("w")
            pieces = source.local("pieces")
            source.line(f"{pieces} = []")
            source.line(f"{inner} = {pieces}.append")
            self._write = inner
            self._field(field, f"{owner}.{field.name}")
            self._flush()
            self._write = outer
            source.line(f'b = b"".join({pieces})')
            source.line(f"{outer}({wire.varint(field.tag or 0)!r})")
            source.line(f"{outer}(varint(len(b)))")
            source.line(f"{outer}(b)")
            source.dedent()


_DEFAULTS: dict[type[Any], Any] = {}


def _shared_default(cls: type[Any]) -> Any:
    if cls not in _DEFAULTS:
        _DEFAULTS[cls] = cls()
    return _DEFAULTS[cls]
