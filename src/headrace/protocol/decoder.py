"""Generates the Python that decodes one version of one message.

One precompiled struct reads adjacent fields of fixed width and the next length. Lengths are checked before memory is
allocated.
"""

from collections.abc import Callable
from struct import calcsize
from typing import Any

from headrace.protocol import wire
from headrace.protocol.encoder import Classes
from headrace.protocol.errors import DecodeError
from headrace.protocol.generated_source import Source
from headrace.protocol.notation import FIXED, ZERO_UUID, Field, MessageTable, Structure

_HELPERS = (
    "COMPACT_STRINGS",
    "PLAIN_STRINGS",
    "bad_length",
    "bad_tag",
    "read_compact_string",
    "read_string",
    "read_varint",
    "skip_tags",
    "to_uuid",
    "too_many",
)

Decode = Callable[[wire.Buffer, int, int], Any]


def build_decoder(table: MessageTable, version: int, classes: Classes) -> Decode:
    """Return the function `(buffer, position, most)` that decodes a body to the end of the buffer.

    `most` limits array elements and tagged fields in total. It raises DecodeError, struct.error, IndexError or
    UnicodeDecodeError.
    """
    emitter = _Decoder(version, version >= table.flexible_from, classes)
    emitter.message(table.root)
    decode: Decode = emitter.source.compile("def decode(buf, p, most):", f"decode {table.root.name} v{version}")
    return decode


class _Decoder:
    def __init__(self, version: int, flexible: bool, classes: Classes) -> None:
        self.source = Source()
        self._version = version
        self._flexible = flexible
        self._classes = classes
        self._pending: list[tuple[str, str]] = []
        for name in _HELPERS:
            self.source.bind(name, getattr(wire, name))
        self.source.bind("DecodeError", DecodeError)

    def message(self, root: Structure) -> None:
        source = self.source
        source.line("end = len(buf)")
        if _has_records(root, self._version):
            source.line("view = buf if type(buf) is memoryview else memoryview(buf)")
        result = self._struct(root, root.name)
        # As in Kafka. librdkafka's Metadata request for all topics (v9 and later) has three extra bytes.
        if not root.name.endswith("Request"):
            source.indent("if p != end:")
            source.line('raise DecodeError(f"{end - p} bytes left over")')
            source.dedent()
        source.line(f"return {result}")

    # Fixed-width items wait in `_pending`, as (format, target).

    def _add(self, code: str, target: str) -> None:
        self._pending.append((code, target))

    def _flush(self) -> None:
        if not self._pending:
            return
        items, self._pending = self._pending, []
        layout = "".join(code for code, _ in items)
        if layout == "B":
            self.source.line(f"{items[0][1]} = buf[p]")
            self.source.line("p += 1")
            return
        targets = "".join(f"{target}, " for _, target in items)
        name = self.source.bind("unpack_" + layout.replace("?", "_"), wire.unpacker(layout))
        self.source.line(f"{targets}= {name}(buf, p)")
        self.source.line(f"p += {calcsize('>' + layout)}")

    def _length(self, code: str) -> str:
        """Read a length or count; -1 is null in every version."""
        length = self.source.local("n")
        self._add("B" if self._flexible else code, length)
        self._flush()
        if self._flexible:
            self.source.indent(f"if {length} > 127:")
            self.source.line(f"{length}, p = read_varint(buf, p - 1)")
            self.source.dedent()
            self.source.line(f"{length} -= 1")
        return length

    def _struct(self, struct: Structure, path: str) -> str:
        values = {field.name: self._value(field, f"{path}.{field.name}") for field in struct.plain(self._version)}
        if self._flexible:
            values |= self._tags(struct, path)
        self._flush()
        arguments = [values.get(field.name) or self._absent(field) for field in struct.fields]
        return f"{self._bind_class(struct)}({', '.join(arguments)})"

    def _bind_class(self, struct: Structure) -> str:
        return self.source.bind(struct.name, self._classes[struct.name])

    def _absent(self, field: Field) -> str:
        if field.kind == "uuid" and not field.is_array:
            return self.source.bind("ZERO_UUID", ZERO_UUID)
        if field.struct is None or field.is_array:
            return repr(field.default)
        return "None" if field.may_be_none else self._bind_class(field.struct) + "()"

    def _value(self, field: Field, path: str) -> str:
        if not field.is_array and field.kind in FIXED:
            local = self.source.local("v")
            self._add(FIXED[field.kind], local)
            return f"to_uuid({local})" if field.kind == "uuid" else local
        local = self.source.local("v")
        if field.is_array:
            self._array(field, local, path)
        elif field.struct is not None:
            self._nested(field, field.struct, local, path)
        elif field.kind == "string":
            self._string(field, local, path)
        else:
            self._bytes(field, local, path)
        return local

    def _nested(self, field: Field, struct: Structure, local: str, path: str) -> None:
        source = self.source
        if not field.nullable_in(self._version):
            source.line(f"{local} = {self._struct(struct, path)}")
            return
        marker = source.local("n")
        self._add("b", marker)
        self._flush()
        source.indent(f"if {marker} < 0:")
        source.line(f"{local} = None")
        source.dedent("else:")
        source.line(f"{local} = {self._struct(struct, path)}")
        source.dedent()

    def _open_null(self, field: Field, length: str, local: str) -> bool:
        """Open the branch for a null, and return whether the caller must close the other branch."""
        if not field.nullable_in(self._version):
            return False
        self.source.indent(f"if {length} == -1:")
        self.source.line(f"{local} = None")
        self.source.dedent("else:")
        return True

    def _check(self, path: str, length: str, left: str, exceeds: str) -> None:
        self.source.indent(f"if {length} < 0 or {exceeds}:")
        self.source.line(f'bad_length("{path}", {length}, {left})')
        self.source.dedent()

    def _string(self, field: Field, local: str, path: str) -> None:
        source = self.source
        nullable = field.nullable_in(self._version)
        length = source.local("n")
        self._add("B" if self._flexible else "h", length)
        self._flush()
        if self._flexible:
            source.indent(f"if 0 < {length} <= {wire.SHORT}:")
            source.line(f"{local} = COMPACT_STRINGS[{length}](buf, p)[0].decode()")
            source.line(f"p += {length} - 1")
            rest = f'read_compact_string(buf, p, {length}, "{path}", {nullable})'
        else:
            source.indent(f"if 0 <= {length} < {wire.SHORT}:")
            source.line(f"{local} = PLAIN_STRINGS[{length}](buf, p)[0].decode()")
            source.line(f"p += {length}")
            rest = f'read_string(buf, p, {length}, "{path}")'
        if nullable:
            source.dedent(f"elif {length} == {0 if self._flexible else -1}:")
            source.line(f"{local} = None")
        source.dedent("else:")
        source.line(f"{local}, p = {rest}")
        source.dedent()

    def _bytes(self, field: Field, local: str, path: str) -> None:
        source = self.source
        length = self._length("i")
        branched = self._open_null(field, length, local)
        source.line(f"q = p + {length}")
        self._check(path, length, "end - p", "q > end")
        source.line(f"{local} = " + ("view[p:q]" if field.kind == "records" else "bytes(buf[p:q])"))
        source.line("p = q")
        if branched:
            source.dedent()

    def _array(self, field: Field, local: str, path: str) -> None:
        source = self.source
        count = self._length("i")
        branched = self._open_null(field, count, local)
        least = _least_size(field, self._version, self._flexible)
        self._check(path, count, "end - p", f"{count} * {least} > end - p" if least > 1 else f"{count} > end - p")
        self._count(count, path)
        if field.kind in FIXED and field.kind not in {"uuid", "bool"}:
            code = FIXED[field.kind]
            reader = source.bind(f"read_{code}", wire.number_arrays(code).read)
            source.line(f"{local} = {reader}(buf, p, {count})")
            source.line(f"p += {count} * {least}")
        else:
            self._loop(field, local, count, path)
        if branched:
            source.dedent()

    def _loop(self, field: Field, local: str, count: str, path: str) -> None:
        source = self.source
        add = source.local("add")
        source.line(f"{local} = []")
        source.line(f"{add} = {local}.append")
        source.indent(f"for _ in range({count}):")
        if field.struct is not None:
            item = self._struct(field.struct, path)
        else:
            item = self._value(field.element(), path)
            self._flush()
        source.line(f"{add}({item})")
        source.dedent()

    def _count(self, count: str, path: str) -> None:
        source = self.source
        source.line(f"most -= {count}")
        source.indent("if most < 0:")
        source.line(f'too_many("{path}", -most)')
        source.dedent()

    def _tags(self, struct: Structure, path: str) -> dict[str, str]:
        source = self.source
        fields = struct.tagged(self._version)
        count = source.local("t")
        self._add("B", count)
        self._flush()
        targets = {field.name: source.local("v") for field in fields}
        for field in fields:
            source.line(f"{targets[field.name]} = {self._absent(field)}")
        source.indent(f"if {count}:")
        source.line(f"{count}, _ = read_varint(buf, p - 1)")
        self._count(count, f"{path}, tagged fields")
        if fields:
            self._read_tags(fields, targets, count, path)
        else:
            source.line("p = skip_tags(buf, p - 1)")
        source.dedent()
        return targets

    def _read_tags(self, fields: list[Field], targets: dict[str, str], count: str, path: str) -> None:
        source = self.source
        tag, size, stop = source.local("tag"), source.local("size"), source.local("stop")
        source.line(f"{count}, p = read_varint(buf, p - 1)")
        source.indent(f"for _ in range({count}):")
        source.line(f"{tag}, p = read_varint(buf, p)")
        source.line(f"{size}, p = read_varint(buf, p)")
        source.line(f"{stop} = p + {size}")
        self._check(path, size, "end - p", f"{stop} > end")
        for field in fields:
            source.indent(f"if {tag} == {field.tag}:")
            value = self._value(field, f"{path}.{field.name}")
            self._flush()
            source.line(f"{targets[field.name]} = {value}")
            source.indent(f"if p != {stop}:")
            source.line(f'bad_tag("{path}.{field.name}", {stop}, p)')
            source.dedent()
            source.dedent()
        # Unknown and repeated tags end here.
        source.line(f"p = {stop}")
        source.dedent()


def _least_size(field: Field, version: int, flexible: bool) -> int:
    if field.struct is not None:
        return max(1, _least_struct_size(field.struct, version, flexible))
    if field.kind in FIXED:
        return calcsize(">" + FIXED[field.kind])
    return 1 if flexible else 2 if field.kind == "string" else 4


def _least_struct_size(struct: Structure, version: int, flexible: bool) -> int:
    size = 1 if flexible else 0
    for field in struct.plain(version):
        if field.is_array:
            size += 1 if flexible else 4
        elif field.struct is not None and field.nullable_in(version):
            size += 1
        else:
            size += _least_size(field, version, flexible)
    return size


def _has_records(struct: Structure, version: int) -> bool:
    return any(
        field.kind == "records" or (field.struct is not None and _has_records(field.struct, version))
        for field in struct.fields
        if version in field.versions
    )
