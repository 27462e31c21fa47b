"""Which records a search finds."""

from headrace.console.record_filter import Filter
from headrace.console.record_worker import NOT_DECODED, Decoded
from headrace.records.walk import Record


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record(0, 0, key, value, ())


def test_text_is_found_in_keys_and_values_raw_and_decoded() -> None:
    plain = record(b"key-1", b'{"a": "x"}')
    assert Filter.of("", "key", "").matches(plain, NOT_DECODED)
    assert Filter.of("", '"x"', "").matches(plain, NOT_DECODED)
    assert not Filter.of("", "KEY", "").matches(plain, NOT_DECODED)
    assert not Filter.of("x", "", "").matches(plain, NOT_DECODED)
    assert not Filter.of("key", "absent", "").matches(plain, NOT_DECODED)
    encoded = record(b"\0\0\0\0\1\2k", b"\0\0\0\0\2\6abc")
    parts = Decoded("", '"k"'), Decoded("", '{"name": "decoded"}')
    assert Filter.of('"k"', "decoded", "").matches(encoded, parts)
    assert Filter.of("", "abc", "").matches(encoded, parts), "raw bytes are found too"
    assert not Filter.of("", "x", "").matches(record(None, None), NOT_DECODED)
    assert not Filter.of("", "", "")
    assert Filter.of("", "\udcff", "").matches(record(None, b"\xff"), NOT_DECODED)


def test_a_field_has_exactly_a_value_or_exists() -> None:
    value = b'{"a": {"b": [1, {"c": null}, "x", true, 1.5]}, "1": "one", "big": 123456789012345678901234567890}'
    for field, text in {
        "a.b.0": "1", "a.b.1.c": "null", "a.b.2": "x", "a.b.3": "true", "a.b.4": "1.5", "1": "one",
        "a.b.1": '{"c": null}',
    }.items():  # fmt: skip
        assert Filter.of("", text, field).matches(record(None, value), NOT_DECODED), field
        assert Filter.of("", "", field).matches(record(None, value), NOT_DECODED), field
        assert not Filter.of("", text + "0", field).matches(record(None, value), NOT_DECODED), field
    for field in ("a.c", "a.b.9", "a.b.-1", "a.b.x", "a..b", ".", "a.b.0.0", "a.b.\u0661"):
        assert not Filter.of("", "", field).matches(record(None, value), NOT_DECODED), field
    for data in (None, b"", b"\xff", b"[" * 100_000, b'{"a":', b'{"a": "' + b"x" * (1 << 20) + b'"}'):
        assert not Filter.of("", "", "a").matches(record(None, data), NOT_DECODED)
    assert not Filter.of("", "", "a").matches(record(None, value), (None, Decoded(fault="unknown")))
