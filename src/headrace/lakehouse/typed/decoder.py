"""What `--schema` names, as a decoder: made once in each process that decodes."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.typed import json_schema, protobuf_schema
from headrace.lakehouse.typed.avro_values import AvroDecoder
from headrace.lakehouse.typed.confluent import WireDecoder
from headrace.lakehouse.typed.json_values import JsonDecoder, placed
from headrace.lakehouse.typed.protobuf_values import ProtobufDecoder
from headrace.lakehouse.typed.schema_registry import Registry
from headrace.lakehouse.typed.variant import VariantDecoder
from headrace.lakehouse.write.columns import Decoded

INFER: Final = "json"
WIRE: Final = "confluent"
VARIANTS: Final = ("variant", "variant-struct")
_KINDS: Final = (".avsc", ".json", ".proto", ".desc")


class Decoder(Protocol):
    """Makes columns of values."""

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Values without nulls, in columns that are named as those of a table with the `known` ones.

        Raises:
            StoreUnavailable: a registry does not answer.
            RegistryRefused: it does not let us in.
        """


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
        made.decoder()
        return made

    def decoder(self) -> Decoder:
        """The decoder, one for this process: it keeps nothing of the values and tables that it is used for."""
        return _made(self)

    def columns(self, known: pa.Schema) -> pa.Schema | None:
        """The columns that the schema gives to a table with those that are `known`; None where each value has its own.

        Raises:
            ValueError: one of its fields can have no column there.
        """
        kind = getattr(self.decoder(), "kind", None)
        return None if kind is None else pa.schema(list(placed(kind, known).type))


@lru_cache(maxsize=8)
def _registry(place: str) -> Registry:
    """One for all decoders of this process: each schema is asked for once."""
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
        return ProtobufDecoder(protobuf_schema.compiled(text, where), decoding.message, where)
    return JsonDecoder(json_schema.parse(text, where))
