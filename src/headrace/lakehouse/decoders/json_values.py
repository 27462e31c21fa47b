"""Decode JSON objects into columns that a schema describes or that the values show.

pyarrow is faster than msgspec but crashes for some values and changes others. It reads only batches that a check finds
usual, with the same result.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.lakehouse.decoders.arrays import Faults, as_double, column
from headrace.lakehouse.decoders.cells import FEW_CELLS, most_cells, widest, within
from headrace.lakehouse.decoders.inference import columns_of
from headrace.lakehouse.decoders.kinds import DEEPEST, Field, Kind, of_fields, of_type
from headrace.lakehouse.write.columns import LONGEST, Decoded, assigned, first_line, plain_name

DEEPEST_TEXT: Final = 100
"""Maximum levels of a JSON value if a schema names the columns."""
_LONG_NUMBERS: Final = rb"[0-9][0-9.]{15}|[0-9][eE]"
"""Finds numbers that a double may change: it preserves 15 digits."""
_NUMBER: Final = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][-+]?[0-9]+)?|[0-9][0-9.]*[eE][-+]?[0-9]+")
"""Finds the numbers of `_LONG_NUMBERS` completely, and text that looks like one."""
_SAMPLE: Final = 20
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# pyarrow accepts some that are no JSON, and reads halves of surrogate pairs differently.
_UNUSUAL: Final = (b"NaN", b"Inf", b"\\u", b"\r")


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON objects."""

    kind: Kind | None = None
    """A struct of the fields that are columns, without all others; None: fields are found in the values."""

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values; see `Decoder`."""
        text = values.cast(pa.binary())
        kind = None if self.kind is None else placed(self.kind, known)
        found = read_plain(text, known if kind is None else _plain_fields(kind), others=kind is not None)
        if found is not None:
            return Decoded(found)
        faults: Faults = {}
        read = _objects(text, DEEPEST if kind is None else DEEPEST_TEXT, faults)
        sizes = pc.binary_length(text).to_pylist()
        if kind is not None:
            return Decoded(column(kind, within(kind, read, sizes, faults), faults), faults)
        while True:
            before = len(faults)
            kind = columns_of(read, known, faults)
            made = column(kind, within(kind, read, sizes, faults), faults)
            if len(faults) == before:
                return Decoded(made, faults)
            read = [None if row in faults else value for row, value in enumerate(read)]


def placed(kind: Kind, known: pa.Schema) -> Kind:
    """Return a struct with the columns of its fields. Raise ValueError."""
    names = assigned([one.source for one in kind.fields], known.names)
    return of_fields([Field(one.source, names[one.source], one.kind) for one in kind.fields], closed=kind.closed)


_PLAIN: Final = msgspec.json.Decoder()
_CAREFUL: Final = msgspec.json.Decoder(float_hook=as_double)


def _objects(text: pa.Array, deepest: int, faults: Faults) -> list[dict[str, Any] | None]:
    careful = pc.match_substring_regex(text, _LONG_NUMBERS).to_pylist()
    brackets = pc.add(pc.count_substring(text, b"{"), pc.count_substring(text, b"["))
    suspects = pc.greater(brackets, deepest).to_pylist()
    read: list[dict[str, Any] | None] = []
    for row, value in enumerate(text.to_pylist()):
        try:
            found = (_CAREFUL if careful[row] else _PLAIN).decode(value)
            if type(found) is not dict:
                raise ValueError("the value is JSON, but no object")
            if suspects[row] and depth(found) > deepest:
                raise ValueError(f"the value is nested deeper than {deepest} levels")
        except RecursionError:
            faults[row] = f"the value is nested deeper than {deepest} levels"
            read.append(None)
        except (msgspec.MsgspecError, ValueError) as error:
            faults[row] = _why(value, error)
            read.append(None)
        else:
            read.append(found)
    return read


def _why(value: bytes, error: Exception) -> str:
    if not value:
        return "the value is empty"
    if _SURROGATE.search(value) is not None and "trailing" not in str(error):
        return f"half of a surrogate pair, or no JSON at all: {first_line(error)}"
    return first_line(error)


def depth(value: Any) -> int:
    """Return the levels of objects and lists."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            each
            for one in level
            for each in (one.values() if type(one) is dict else one)
            if type(each) is dict or type(each) is list
        ]
    return depth


def read_plain(text: pa.Array, fields: pa.Schema | None, *, others: bool) -> pa.StructArray | None:
    """Return the values, or None if pyarrow cannot read one exactly.

    Other fields are left out with `others`; without, they make the result None.
    """
    if not fields or not len(text) or not all(_is_simple(one, own=True) for one in fields):
        return None
    joined = _joined(text)
    if not _is_narrow(text, fields) or not _is_usual(text, joined.to_pybytes(), fields, others=others):
        return None
    more = [] if others else _empty_fields(text, fields)
    try:
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(joined.size + 1, 1 << 10)),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([*fields, *more]), unexpected_field_behavior="ignore" if others else "error"
            ),
        )
    except (pa.ArrowException, ValueError):
        return None
    table = table.select(fields.names)
    if table.num_rows != len(text) or table.schema != fields:
        return None
    return pa.StructArray.from_arrays([_whole(one) for one in table.columns], fields=list(fields))


def _empty_fields(text: pa.Array, fields: pa.Schema) -> list[pa.Field]:
    found: dict[str, Any] = {}
    for value in text.slice(0, _SAMPLE).to_pylist():
        try:
            read = _PLAIN.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []
        found |= {name: each for name, each in read.items() if name not in fields.names and len(name) <= LONGEST}
    return [pa.field(name, pa.null()) for name, each in found.items() if each is None][:_SAMPLE]


def _plain_fields(kind: Kind) -> pa.Schema | None:
    return pa.schema(list(kind.type)) if all(_is_plain(one.kind) for one in kind.fields) else None


def _is_plain(kind: Kind) -> bool:
    inner = [*kind.inner, *(one.kind for one in kind.fields)]
    return kind.name not in {"json", "time"} and all(map(_is_plain, inner))


def _is_simple(one: pa.Field, *, own: bool) -> bool:
    try:
        named = plain_name(one.name, own=own) == one.name
    except ValueError:
        return False
    kind = one.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        return named and kind.num_fields > 0 and all(_is_simple(each, own=False) for each in kind)
    return named and kind in _SIMPLE


_SIMPLE: Final = {pa.bool_(), pa.int64(), pa.float64(), pa.string()}


def _is_usual(text: pa.Array, lines: bytes, fields: pa.Schema, *, others: bool) -> bool:
    """Return whether each value is one line of UTF-8 from `{` to `}`, flat enough, with usual numbers.

    If a line ends in `}` and the next begins with `{`, no object continues across them. Equal counts of objects and
    values thus mean one object per line.
    """
    try:
        text.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    if not pc.all(pc.and_(pc.starts_with(text, b"{"), pc.ends_with(text, b"}"))).as_py():
        return False
    if lines.count(b"\n") != len(text) or any(one in lines for one in _UNUSUAL):
        return False
    # pyarrow rejects whole numbers that do not fit.
    if any(_has_fractions(one.type) for one in fields):
        suspects = text.filter(pc.match_substring_regex(text, _LONG_NUMBERS)).to_pylist()
        if not all(map(_has_doubles, suspects)):
            return False
    if not others:
        return True
    brackets = pc.add(pc.count_substring(text, b"{"), pc.count_substring(text, b"["))
    return bool(pc.max(brackets).as_py() <= DEEPEST_TEXT)


def _is_narrow(text: pa.Array, fields: pa.Schema) -> bool:
    cells = max((_widest(one.type) for one in fields), default=0)
    if cells <= FEW_CELLS:
        return True
    items = pc.add(pc.count_substring(text, b"{"), pc.count_substring(text, b"null"))
    most = [most_cells(size) for size in pc.binary_length(text).to_pylist()]
    return bool(pc.all(pc.less_equal(pc.multiply(items, cells), pa.array(most))).as_py())


def _widest(kind: pa.DataType) -> int:
    made = of_type(kind, text=True)
    return 0 if made is None else widest(made)


def _has_doubles(value: bytes) -> bool:
    return all(one.count(b".") < 2 and type(as_double(one.decode())) is float for one in _NUMBER.findall(value))


def _has_fractions(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_fractions(one.type) for one in kind)
    return _has_fractions(kind.value_type) if pa.types.is_list(kind) else kind == pa.float64()


def _joined(text: pa.Array) -> pa.Buffer:
    lines = pa.concat_arrays([pc.binary_join_element_wise(text, b"\n", b"")])
    offsets = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset)
    start = offsets[0].as_py()
    return lines.buffers()[2].slice(start, offsets[len(lines)].as_py() - start)


def _whole(chunks: pa.ChunkedArray) -> pa.Array:
    return chunks.chunk(0) if chunks.num_chunks == 1 else pa.concat_arrays(chunks.chunks)
