"""Decode record values by the schema of `--schema`, with one decoder per process.

Failed values are found by bisection, and only their records are set aside. Errors of a registry or a store are raised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.errors import ModuleMissing, OptionError, SparkError
from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.avro_values import AvroDecoder
from headrace.lakehouse.decoders.confluent import WireDecoder
from headrace.lakehouse.decoders.json_schema import parse
from headrace.lakehouse.decoders.json_values import JsonDecoder, placed
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.lakehouse.decoders.protobuf_values import ProtobufDecoder
from headrace.lakehouse.decoders.refit import refitted
from headrace.lakehouse.decoders.schema_registry import Registry
from headrace.lakehouse.decoders.variant import VariantDecoder
from headrace.lakehouse.write.columns import Decoded, first_line, grown, nothing, widened
from headrace.lakehouse.write.table import COLUMNS, DEAD_COLUMNS
from headrace.text import extras

INFER: Final = "json"
WIRE: Final = "confluent"
VARIANTS: Final = ("variant", "variant-struct")
_KINDS: Final = (".avsc", ".json", ".proto", ".desc")


class Decoder(Protocol):
    """Makes columns of values."""

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values without nulls into columns, named as the `known` ones.

        Raise StoreUnavailable, RegistryRefused.
        """


@dataclass(frozen=True)
class Decoding:
    """How values become columns. It is sent to the tasks with the schema's bytes."""

    kind: str
    """`json`, `variant`, `variant-struct`, `confluent`, or the suffix of a schema file."""
    schema: bytes = b""
    where: str = ""
    message: str | None = None
    """Full name of a Protobuf message."""
    registry: str | None = None

    @classmethod
    def of(cls, schema: str, *, registry: str | None = None, message: str | None = None) -> "Decoding":
        """Return the decoding for a user's options. Raise OptionError, also if options conflict."""
        if (schema == WIRE) != (registry is not None):
            raise OptionError(
                "--schema confluent and --schema-registry go together: the registry, or a folder of schemas by id, "
                "has the schemas that the values name"
            )
        if registry is not None and "://" not in registry and not Path(registry).is_dir():
            raise OptionError(f"--schema-registry {registry}: there is no such folder")
        if schema in {INFER, WIRE, *VARIANTS}:
            return cls(schema, message=message, registry=registry)
        path = Path(schema)
        if path.suffix not in _KINDS:
            raise OptionError(
                f"--schema {schema}: expected json, variant, variant-struct, confluent, or a file that ends in "
                f"{', '.join(_KINDS)}"
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise OptionError(f"--schema {schema}: {error.strerror}") from None
        made = cls(path.suffix, content, schema, message)
        made.decoder()
        return made

    def decoder(self) -> Decoder:
        """Return this process's decoder, which keeps no state."""
        return _made(self)

    def columns(self, known: pa.Schema) -> pa.Schema | None:
        """Return the columns that the schema adds, or None if each value has its own. Raise ValueError."""
        kind = getattr(self.decoder(), "kind", None)
        return None if kind is None else pa.schema(list(placed(kind, known).type))


@lru_cache(maxsize=8)
def _registry(place: str) -> Registry:
    return Registry(place)


@lru_cache(maxsize=32)
def _made(decoding: Decoding) -> Decoder:
    kind, where = decoding.kind, decoding.where
    if kind == INFER:
        return JsonDecoder()
    if kind in VARIANTS:
        return VariantDecoder(plain=kind == "variant-struct")
    if kind == WIRE:
        return WireDecoder(_registry(str(decoding.registry)), decoding.message)
    if kind == ".desc":
        return ProtobufDecoder(decoding.schema, decoding.message, where)
    return _of_text(decoding, kind, where)


def _of_text(decoding: Decoding, kind: str, where: str) -> Decoder:
    try:
        text = decoding.schema.decode("utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"{where} is not text") from None
    if kind == ".avsc":
        return AvroDecoder(text, where)
    if kind == ".proto":
        return ProtobufDecoder(compiled(text, where), decoding.message, where)
    return JsonDecoder(parse(text, where))


Check = Callable[[pa.RecordBatch], None]
"""Raises the error that writing the records would raise."""


class Values:
    """Decodes the values of one range."""

    def __init__(
        self,
        decoding: Decoding,
        columns: pa.Schema,
        *,
        refused: Mapping[str, str] | None = None,
        check: Check | None = None,
    ) -> None:
        """Prepare. `columns` are the table's value columns. `check` is called with each batch before it is written.

        `refused` are columns that the table cannot get, with the reason.
        """
        self._decoder = decoding.decoder()
        self._refused = refused or {}
        self._check = check
        self.columns = columns
        """The table's columns, followed by those found since."""
        self.reason = ""
        """Why the first record was set aside."""

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return decoded records with their columns, and failed records with the reason. A missing value is null."""
        reasons: Faults = {}
        parts = self._parts(batch, 0, reasons)
        whole = pa.concat_batches([self._whole(rows, found) for rows, found in parts]) if parts else self._whole(batch)
        if not reasons:
            return whole, _none()
        rows = sorted(reasons)
        self.reason = self.reason or reasons[rows[0]]
        places = pa.array(rows, pa.int64())
        bad = pa.array([row in reasons for row in range(batch.num_rows)])
        dead = batch.take(places)
        told = pa.array([_printable(reasons[row]) for row in rows], pa.string())
        return whole.filter(pc.invert(bad)), pa.RecordBatch.from_arrays([*dead.columns, told], schema=DEAD_COLUMNS)

    def _whole(self, rows: pa.RecordBatch, found: pa.StructArray | None = None) -> pa.RecordBatch:
        found = nothing(rows.num_rows) if found is None else found
        parts = widened(found, self.columns).flatten() if len(self.columns) else []
        return pa.RecordBatch.from_arrays([*rows.columns, *parts], schema=pa.schema([*COLUMNS, *self.columns]))

    def _parts(self, batch: pa.RecordBatch, first: int, reasons: Faults) -> list[tuple[pa.RecordBatch, pa.StructArray]]:
        """Return parts that decode, in order. A failed record is a part without columns."""
        if not batch.num_rows:
            return []
        try:
            found, faults = self._decoded(batch)
        except SparkError:
            raise
        except ImportError as error:  # no fault of the records
            raise ModuleMissing(extras.explained("decoding the values", error)) from None
        except Exception as error:  # a library may raise any error
            if batch.num_rows == 1:
                reasons[first] = f"{type(error).__name__}: {first_line(error)}"
                return [(batch, nothing(1))]
        else:
            reasons |= {first + row: why for row, why in faults.items()}
            return [(batch, found)]
        half = batch.num_rows // 2
        return [
            *self._parts(batch.slice(0, half), first, reasons),
            *self._parts(batch.slice(half), first + half, reasons),
        ]

    def _decoded(self, batch: pa.RecordBatch) -> tuple[pa.StructArray, Faults]:
        values = batch.column("value")
        present = values.is_valid()
        decoded = self._decoder.decode(values.filter(present) if values.null_count else values, self.columns)
        found = refitted(decoded.columns, self.columns, decoded.reasons)
        found = self._allowed(Decoded(found, decoded.reasons))
        faults = decoded.reasons
        if values.null_count:
            places = pc.indices_nonzero(present).to_pylist() if faults else []
            faults = {places[row]: why for row, why in faults.items()}
            behind = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
            found = found.take(pc.if_else(present, behind, pa.scalar(None, pa.int64())))
        if len(found) != batch.num_rows:
            raise ValueError(f"{len(found)} rows of {batch.num_rows} values")
        columns = self.columns
        if len(faults) < batch.num_rows:  # otherwise the batch adds no columns
            self.columns = grown(columns, pa.schema(list(found.type)))
        try:
            whole = self._whole(batch, found)
            if self._check is not None:
                self._check(whole)
        except BaseException:
            self.columns = columns
            raise
        return found, faults

    def _allowed(self, decoded: Decoded) -> pa.StructArray:
        """Drop columns that the table cannot get, and set affected records aside."""
        found = decoded.columns
        kept = [place for place, one in enumerate(found.type) if one.name not in self._refused]
        if len(kept) == found.type.num_fields:
            return found
        for place, one in enumerate(found.type):
            for row, valid in enumerate(found.field(place).is_valid().to_pylist() if place not in kept else ()):
                if valid:
                    decoded.reasons.setdefault(row, f"column {one.name!r}: {self._refused[one.name]}")
        if not kept:
            return nothing(len(found))
        fields = [found.type[place] for place in kept]
        return pa.StructArray.from_arrays([found.field(place) for place in kept], fields=fields)


def _printable(reason: str) -> str:
    text = reason.encode("utf-8", "backslashreplace").decode()
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _none() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=DEAD_COLUMNS)
