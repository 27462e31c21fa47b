"""Which batches readers of committed records may not see."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.records.accelerator import stamp
from headrace.records.build import build
from headrace.records.markers import Marker, build_marker
from headrace.topics.committed_batches import HiddenBatches, is_transactional
from headrace.topics.transactions import AbortedTransaction


def at(offset: int, producer: int, *, transactional: bool = True) -> bytes:
    batch = bytearray(
        build(
            [(None, b"v", 5, ())], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=transactional
        )
    )
    stamp(batch, offset, 0)
    return bytes(batch)


def marker(offset: int, producer: int) -> bytes:
    batch = build_marker(Marker(producer, 0, True, 1), 5)
    stamp(batch, offset, 0)
    return bytes(batch)


STEPS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["send", "plain", "commit", "abort"])), max_size=40)


@given(STEPS)
def test_hidden_ones_are_markers_and_aborted(steps: list[tuple[int, str]]) -> None:
    log: list[tuple[bytes, int | None]] = []
    opened: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    hidden: set[int] = set()
    for producer, step in steps:
        offset = len(log)
        if step == "send":
            opened.setdefault(producer, offset)
            log.append((at(offset, producer), producer))
        elif step == "plain":
            log.append((at(offset, producer + 10, transactional=False), None))
        elif producer in opened:
            first = opened.pop(producer)
            log.append((marker(offset, producer), None))
            hidden.add(offset)
            if step == "abort":
                aborted.append(AbortedTransaction(producer, first, offset, offset + 1))
                hidden |= {place for place in range(first, offset) if log[place][1] == producer}
    found = HiddenBatches(aborted)
    assert {offset for offset, (batch, _) in enumerate(log) if batch in found} == hidden
    markers = {offset for offset, (_, sender) in enumerate(log) if sender is None and offset in hidden}
    assert {offset for offset, (batch, _) in enumerate(log) if found.is_aborted(batch)} == hidden - markers
    plain = [batch for batch, _ in log if not is_transactional(batch)]
    assert not any(batch in found for batch in plain)
