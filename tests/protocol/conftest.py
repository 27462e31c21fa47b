"""Random messages, made from the tables."""

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from headrace.protocol import messages
from headrace.protocol.notation import Field, MessageTable, Structure

MessagesOf = Callable[[MessageTable, int], st.SearchStrategy[Any]]

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

# Lengths on both sides of where a varint grows to a second and a third byte.
TEXTS = ["", "x", "Ünïcode", "\0", "x" * 125, "x" * 126, "x" * 127, "x" * 128, "é" * 9000]
BLOBS = [b"", b"\0", b"abc", b"x" * 126, b"x" * 127, b"x" * 20_000]
# Lengths on both sides of where an integer array loses its own struct.
COUNTS = [0, 1, 2, 15, 16, 17, 130]
FLOATS = [0.0, -1.5, 1e300, float("inf")]


class Builder:
    """Makes messages of one version from a seed; `size` bounds how long its arrays of structures grow."""

    def __init__(self, owner: type, version: int, random: Random, size: int) -> None:
        self.owner = owner
        self.version = version
        self.random = random
        self.size = size

    def structure(self, structure: Structure, cls: type) -> Any:
        fields = [field for field in structure.fields if self.version in field.versions]
        return cls(**{field.name: self.value(field) for field in fields})

    def value(self, field: Field) -> Any:
        may_be_null = field.nullable_in(self.version)
        if may_be_null and self.random.random() < 0.3:
            return None
        if field.is_array:
            counts = range(self.size + 1) if field.kind not in BITS else COUNTS[: self.size * 2 + 1]
            return [self.single(field) for _ in range(self.random.choice(counts))]
        value = self.single(field)
        # A tagged structure with nothing but defaults is not sent, and so comes back as None.
        if field.struct is not None and field.tag is not None and value == type(value)():
            return None
        return value

    def single(self, field: Field) -> Any:
        random = self.random
        if field.struct is not None:
            return self.structure(field.struct, getattr(self.owner, field.struct.name))
        if field.kind in BITS:
            return self.integer(field)
        if field.kind == "uint16":
            return random.choice([0, 1, 9092, (1 << 16) - 1])
        if field.tag is not None and random.random() < 0.3:
            return field.default
        if field.kind == "uuid":
            return random.choice([UUID(int=0), UUID(int=random.getrandbits(128))])
        choices: dict[str, list[Any]] = {"bool": [False, True], "string": TEXTS, "float64": FLOATS}
        return random.choice(choices.get(field.kind, BLOBS))

    def integer(self, field: Field) -> int:
        if field.name in ("error_code", "partition_error_code"):
            return self.random.randint(-1, 120)  # what kio has names for
        if field.name.endswith("_ms") and field.kind == "int64":
            unset = 0 if field.name == "transaction_start_time_ms" else -1  # kio has no date for it there
            return self.random.choice([unset, 0, self.random.randrange(2**41)])  # what kio has dates for
        limit = 1 << (BITS[field.kind] - 1)
        return self.random.choice([-limit, limit - 1, -1, 0, 1, self.random.randrange(-limit, limit)])


@pytest.fixture(scope="session")
def messages_of() -> MessagesOf:
    """A strategy for messages with random values in the fields that a version has.

    One draw of a seed makes the whole message: hundreds of (message, version) pairs are to be tried in seconds.
    """

    def strategy(table: MessageTable, version: int) -> st.SearchStrategy[Any]:
        cls = getattr(messages, table.root.name)

        def build(size: int, seed: int) -> Any:
            return Builder(cls, version, Random(seed), size).structure(table.root, cls)

        return st.builds(build, st.integers(0, 3), st.integers(0, 2**32))

    return strategy
