"""The guard of a typed table: whatever fails, only the records that make it fail are set aside."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.mutation import mutated
from tests.harness.typed_values import NOTHING, batch_of, split

from headrace.client.errors import ModuleMissing, StoreUnavailable
from headrace.lakehouse.decoders import decoder
from headrace.lakehouse.decoders.decoder import Decoding, Values
from headrace.lakehouse.write.columns import Decoded

JSON = Decoding.of("json")
VARIANT = Decoding.of("variant-struct")


class Failing:
    """A decoder that fails unexpectedly for one value."""

    def __init__(self, fail: Callable[[], None]) -> None:
        self._fail = fail

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        found = values.to_pylist()
        if b"bad" in found:
            self._fail()
        kind = pa.struct([("n", pa.int64())])
        return Decoded(pa.array([{"n": len(value)} for value in found], kind))


def _raise(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_a_missing_module_is_no_fault_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModuleNotFoundError("No module named 'grpc_tools'", name="grpc_tools")
    monkeypatch.setattr(decoder, "_made", lambda _: Failing(_raise(error)))
    with pytest.raises(ModuleMissing, match="needs the Python module grpc_tools: install the extra `schemas`"):
        split(JSON, [b"x", b"bad", b"x"])


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), pa.ArrowNotImplementedError("x"), MemoryError(), RecursionError(), KeyError("k")]
)
def test_a_record_that_makes_a_decoder_fail_is_found(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_made", lambda _: Failing(_raise(error)))
    values = [b"x" * (1 + row % 3) for row in range(100)]
    values[7] = values[8] = values[99] = b"bad"
    found = split(JSON, [None, *values, None])
    assert sorted(found.dead) == [8, 9, 100]
    assert all(type(error).__name__ in reason for reason in found.dead.values())
    assert found.table[1] == {"n": 1}


def test_a_store_that_does_not_answer_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_made", lambda _: Failing(_raise(StoreUnavailable("away"))))
    with pytest.raises(StoreUnavailable):
        split(JSON, [b"x", b"bad"])


def test_a_decoder_that_loses_rows_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(Failing):
        def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
            kept = [value for value in values.to_pylist() if value != b"bad"]
            return Decoded(pa.array([{"n": len(value)} for value in kept], pa.struct([("n", pa.int64())])))

    monkeypatch.setattr(decoder, "_made", lambda _: Losing(_raise(AssertionError())))
    found = split(JSON, [b"a", b"bad", b"ccc"])
    assert list(found.dead) == [1]
    assert found.table == {0: {"n": 1}, 2: {"n": 3}}


def test_a_record_that_cannot_be_written_is_found() -> None:
    def check(rows: pa.RecordBatch) -> None:
        if "text" in rows.schema.names and "unwritable" in rows.column("text").to_pylist():
            raise pa.ArrowNotImplementedError("no such page")

    values = Values(JSON, NOTHING, check=check)
    good, bad = values.split(batch_of([b'{"n": 1}', b'{"text": "unwritable", "x": 1}', b'{"text": "t"}']))
    assert bad.column("reason").to_pylist() == ["ArrowNotImplementedError: no such page"]
    assert good.column("offset").to_pylist() == [0, 2]
    assert values.columns.names == ["n", "text"]
    assert values.reason == "ArrowNotImplementedError: no such page"


def test_a_column_that_the_table_cannot_get() -> None:
    values = Values(JSON, NOTHING, refused={"odd": "Delta says no"})
    good, bad = values.split(batch_of([b'{"n": 1}', b'{"n": 2, "odd": 1}', b'{"odd": null}']))
    assert bad.column("reason").to_pylist() == ["column 'odd': Delta says no"]
    assert good.column("n").to_pylist() == [1, None]


def test_decoders_keep_nothing_between_topics() -> None:
    first = split(JSON, [b'{"a": 1}'])
    second = split(JSON, [b'{"a": "text", "b": 2}'])
    assert (first.columns.names, second.columns.names) == (["a"], ["a", "b"])
    assert second.dead == {}
    assert split(JSON, [b'{"c": 1}']).columns.names == ["c"]


_JSON = st.sampled_from([b'{"a": [1, 2.50, {"b": "x"}], "n": null}', b"[1e3, true]", b'"text"', b"0"])


@settings(max_examples=80, deadline=None, database=None)
@given(st.lists(mutated(_JSON, [b"{", b"[", b'"', b"1e999", b"\\ud800", b"\xff", b"9" * 40]), max_size=8))
def test_any_variant_is_encoded_or_set_aside(values: list[bytes]) -> None:
    found = split(VARIANT, [b"1", *values, b"2"])
    assert found.table[0]["json"]["value"] == b"\x0c\x01"
    assert found.table[len(values) + 1]["json"]["value"] == b"\x0c\x02"


@pytest.mark.parametrize("value", [b"[" * (1 << 20), b"[" * 201 + b"]" * 201, b'{"a":' * 5_000 + b"1" + b"}" * 5_000])
def test_a_variant_that_is_too_deep_is_set_aside(value: bytes) -> None:
    found = split(VARIANT, [b"1", value, b"[" * 200 + b"]" * 200])
    assert list(found.dead) == [1]
    assert "nested deeper than 200 levels" in found.dead[1] or "truncated" in found.dead[1]
