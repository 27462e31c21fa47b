"""Signatures: they need the secret, and each is valid for one request."""

import pytest

from headrace.http.peers.signature import SECRET_SIZE, SKEW_MS, InvalidPeerSignature, PeerSigner
from headrace.security.access.principal import Principal

ALICE = Principal("alice", "tenancy")
NOW_MS = 1_000_000_000
TARGET = b"/20180418/streams/x/messages?cursor=abc"


@pytest.fixture
def seals() -> PeerSigner:
    return PeerSigner(bytes(SECRET_SIZE))


def test_who_reads_a_seal_learns_on_whose_behalf_it_was_made(seals: PeerSigner) -> None:
    seal = seals.seal("POST", TARGET, b"body", ALICE, NOW_MS)
    for apart in (0, SKEW_MS, -SKEW_MS):
        assert seals.read(seal, "POST", TARGET, NOW_MS + apart).principal == ALICE
    assert seals.covers(seal, b"body")
    assert not seals.covers(seal, b"another body")


def test_a_seal_is_good_for_one_request_and_a_while(seals: PeerSigner) -> None:
    seal = seals.seal("POST", TARGET, b"body", ALICE, NOW_MS)
    for method, target, now_ms in (
        ("GET", TARGET, NOW_MS),
        ("POST", TARGET + b"d", NOW_MS),
        ("POST", TARGET, NOW_MS + SKEW_MS + 1),
        ("POST", TARGET, NOW_MS - SKEW_MS - 1),
    ):
        with pytest.raises(InvalidPeerSignature):
            seals.read(seal, method, target, now_ms)
    with pytest.raises(InvalidPeerSignature):
        PeerSigner(b"1" * SECRET_SIZE).read(seal, "POST", TARGET, NOW_MS)


@pytest.mark.parametrize("change", ["", ".", "x", "eA==.", "\u00e9.\u00e9", "eA==.\u00e9"])
def test_an_invalid_signature_is_refused(seals: PeerSigner, change: str) -> None:
    seal = seals.seal("POST", TARGET, b"body", ALICE, NOW_MS)
    for text in (change, seal + change if change else seal[:-1], change + seal if change else seal[1:]):
        with pytest.raises(InvalidPeerSignature):
            seals.read(text, "POST", TARGET, NOW_MS)
