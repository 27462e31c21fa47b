"""Any bytes as an append-only file: what is read from it are batches that it has, or nothing."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.mutation import mutated

from headrace.records.build import build
from headrace.storage.layout import entries
from headrace.storage.redis.protocol import encode

_aof = pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")

KEYS = (b"k", b"headrace:t:0")


def batch(base: int) -> bytes:
    made = bytearray(build([(None, b"value" * 20, 1_000, ())] * 2))
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


COMMANDS = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 9)).map(
        lambda each: encode(
            ["XADD", each[0], "NOMKSTREAM", f"1-{2 * each[1] + 2}", "b", batch(2 * each[1]), "t", "5", "s", "9"]
        )
    ),
    st.tuples(
        st.sampled_from(["XDEL", "XTRIM", "SELECT", "MULTI", "XGROUP", "FLUSHALL"]),
        st.lists(st.sampled_from([b"0", b"1-4", b"MINID", b"=", *KEYS]), max_size=5),
    ).map(lambda each: encode([each[0], *each[1]])),
)
WHOLE = st.lists(COMMANDS, max_size=12).map(lambda commands: encode(["SELECT", "0"]) + b"".join(commands))
TOKENS = (
    b"\r\n", b"\r", b"$", b"*", b":", b"-", b"#", b"9" * 11, b"9" * 30, b"$-1\r\n", b"*0\r\n", b"$1099511627776\r\n",
    b"*10\r\n", b"*1099511627776\r\n", b"$61\r\n", b"\0" * 4, b"\x7f\xff\xff\xff",
    b"18446744073709551615-1", b"4294967296-2",
)  # fmt: skip


@given(
    st.one_of(WHOLE, mutated(WHOLE, TOKENS)),
    st.integers(1, 400),
    st.integers(1, 8),
    st.lists(st.integers(1, 300), min_size=1),
)
def test_any_bytes_as_a_file(data: bytes, work: int, most: int, cuts: list[int]) -> None:
    index = _aof.Index(most)
    with tempfile.TemporaryFile() as file, Path(f"/proc/self/fd/{file.fileno()}").open("ab", buffering=0) as writing:
        if not _aof.can_read(file.fileno()):
            pytest.skip("this disk lets nobody read without waiting for it")
        written = turn = 0
        while written < len(data):
            writing.write(data[written : written + cuts[turn % len(cuts)]])
            written += cuts[turn % len(cuts)]
            turn += 1
            while (how := index.scan(file.fileno(), work)) == _aof.MORE:
                assert index.places <= most
            assert how in {_aof.AT_END, _aof.UNKNOWN}
            assert index.places <= most
            for key in KEYS:
                for first in ((0, 1), (1, 3), (1, 8)):
                    found = index.read(file.fileno(), key, first, entries.LAST_ID, 100, 1_000, False)
                    for base, following, each, count in [] if found is None else found[0]:
                        assert bytes(each) in data
                        assert int.from_bytes(each[:8], "big") == base < following
                        assert count == 1
                    joined = index.read(file.fileno(), key, first, entries.LAST_ID, 100, 1_000, True)
                    assert _whole(joined) == _whole(found)
                    assert joined is None or len(joined[0]) == min(2, len(found[0]))


def _whole(found: Any) -> Any:
    """What was read, however many batches came as one."""
    if found is None:
        return None
    batches, following = found
    read = b"".join(bytes(each) for _, _, each, _ in batches)
    return batches[0][0], batches[-1][1], read, sum(count for *_, count in batches), following
