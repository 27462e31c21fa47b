"""The choice between the C extension and Python, and the same results and messages from both."""

import importlib.util
import os
import random
import sys
from collections.abc import Callable
from types import ModuleType

import google_crc32c
import pytest

from headrace.records import accelerator
from headrace.records.build import build
from headrace.records.errors import BatchError
from headrace.records.fallback import encode as fallback_encode
from headrace.records.fallback import header

try:
    import headrace.records._compiled as extension
except ImportError:
    EXTENSIONS: list[ModuleType] = []
else:
    EXTENSIONS = [extension]


def test_without_the_extension_everything_is_there_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.records._compiled", None)
    spec = importlib.util.spec_from_file_location("compiled_without_extension", accelerator.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.available is False
    assert "aiokafka" in module.description
    assert module.check is header.check
    assert {name for name in vars(accelerator) if name.isidentifier() and name[0] != "_"} == {
        name for name in vars(module) if name[0] != "_"
    }


def test_the_description_names_the_code_in_use() -> None:
    assert ("C extension" in accelerator.description) is accelerator.available


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("function", ["crc32c", "crc32c_tables"])
def test_crc_of_every_length_and_alignment(extension: ModuleType, function: str) -> None:
    crc32c = getattr(extension, function)
    data = os.urandom(40_000)
    sizes = [*range(70), 255, 256, 767, 768, 769, 1_543, 4_096, 12_287, 12_288, 12_289, 25_000, 39_990]
    for size in sizes:
        for start in (0, 1, 7):
            part = data[start : start + size]
            assert crc32c(memoryview(data)[start : start + size]) == google_crc32c.value(part)
            assert crc32c(part[size // 3 :], crc32c(part[: size // 3])) == google_crc32c.value(part)
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_both_checks_give_the_same_answer_in_the_same_words(extension: ModuleType) -> None:
    choose = random.Random(4)
    batch = bytes(build([(b"k", b"v", 5, ())] * 4, producer_id=3, producer_epoch=1, base_sequence=9))
    for _ in range(20_000):
        broken = bytearray(batch)
        for _ in range(choose.randrange(4)):
            broken[choose.randrange(61)] = choose.choice([0, 1, 2, 127, 128, 255])
        if choose.random() < 0.2:
            broken = broken[: choose.randrange(len(broken))] + bytes(choose.randrange(3))
        if choose.random() < 0.7 and len(broken) > 21:
            broken[17:21] = google_crc32c.value(bytes(broken[21:])).to_bytes(4, "big")
        assert outcome(extension.check, broken) == outcome(header.check, broken)
        assert outcome(extension.peek, broken) == outcome(header.peek, broken)


def outcome(function: object, batch: bytearray) -> object:
    assert callable(function)
    try:
        return function(batch)
    except BatchError as error:
        return type(error), str(error)


@pytest.mark.parametrize("encode", [fallback_encode.encode, *(found.encode for found in EXTENSIONS)])
def test_a_record_of_the_wrong_shape_is_a_programming_error(encode: object) -> None:
    assert callable(encode)
    for record in ((b"k", b"v", 5, ((b"bytes", b"v"),)), ("text", b"v", 5, ()), (b"k", b"v", "5", ()), (b"k", b"v")):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            encode([record], 0)
    with pytest.raises(OverflowError):
        encode([(b"k", b"v", 2**63, ())], 0)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
@pytest.mark.parametrize("unfilled", [bytearray, accelerator.unfilled])
def test_memory_to_be_filled_has_the_size_asked_for(unfilled: Callable[[int], bytearray], size: int) -> None:
    memory = unfilled(size)
    memory[:] = bytes(size)
    assert memory == bytearray(size)


@pytest.mark.parametrize("unfilled", [bytearray, accelerator.unfilled])
def test_there_is_no_memory_of_less_than_nothing(unfilled: Callable[[int], bytearray]) -> None:
    with pytest.raises(ValueError, match=r"-1|negative"):
        unfilled(-1)
    with pytest.raises((OverflowError, MemoryError)):
        unfilled(1 << 70)
