"""What `--schema` names, as a decoder: made once in each process that decodes."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.typed import json_values, protobuf_values
from headrace.lakehouse.typed.avro_values import AvroDecoder
from headrace.lakehouse.typed.protobuf_values import ProtobufDecoder
from headrace.lakehouse.typed.schema_registry import Registry, WireDecoder
from headrace.lakehouse.typed.variant import VariantDecoder
from headrace.lakehouse.write.columns import Decoded, field_name

INFER: Final = "json"
WIRE: Final = "confluent"
VARIANTS: Final = ("variant", "variant-struct")
_KINDS: Final = (".avsc", ".json", ".proto", ".desc")


class Decoder(Protocol):
    """Makes columns of values."""

    def decode(self, values: pa.Array) -> Decoded:
        """Values without nulls. Raises StoreUnavailable when a registry does not answer."""


@dataclass(frozen=True)
class Decoding:
    """How values become columns. Travels to the tasks, with the schema's own bytes."""

    kind: str
    """`json`, `variant`, `variant-struct`, `confluent`, or the ending of a schema file."""
    schema: bytes = b""
    where: str = ""
    message: str | None = None
    """Protobuf: the message's full name."""
    registry: str | None = None

    @classmethod
    def of(cls, schema: str, *, registry: str | None = None, message: str | None = None) -> "Decoding":
        """What a user has named; whether it can be read shows here.

        Raises:
            OptionError: no such file, no schema, or something that does not belong together.
        """
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
        made.decoder(pa.schema([]))
        return made

    def decoder(self, known: pa.Schema) -> Decoder:
        """A decoder, kept for the next batch; `known` are the table's columns of values."""
        return _made(self, known if self.kind in {INFER, WIRE, *VARIANTS} else pa.schema([]))


@lru_cache(maxsize=8)
def _registry(place: str) -> Registry:
    """One for all decoders of this process: each schema is asked for once."""
    return Registry(place)


@lru_cache(maxsize=32)
def _made(decoding: Decoding, known: pa.Schema) -> Decoder:
    kind, where = decoding.kind, decoding.where
    if kind == INFER:
        fields = pa.schema([pa.field(field_name(one.name), one.type) for one in known])
        return json_values.JsonDecoder(fields, infer=True)
    if kind in VARIANTS:
        return VariantDecoder(known, plain=kind == "variant-struct")
    if kind == WIRE:
        return WireDecoder(_registry(str(decoding.registry)), known, decoding.message)
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
        return ProtobufDecoder(protobuf_values.compiled(text, where), decoding.message, where)
    return json_values.JsonDecoder(json_values.parse(text, where))
