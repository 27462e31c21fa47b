"""Signatures to verify: a client that knows the name of a key but not the key affects no other client."""

import base64
import secrets
import socket
from email.utils import formatdate
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

from headrace.oci.api_keys import KeyDirectory, fingerprint
from headrace.oci.signatures import ApiKey
from headrace.testing import server
from tests.hostile.http.attacking import BASE, COMPARTMENT, Target, answer_of, many, read_all, request
from tests.hostile.http.bystander import Bystander

TENANCY, USER = "ocid1.tenancy.oc1..a", "ocid1.user.oc1..b"
BITS = 16_384
"""The longest key with which signatures can be verified; each takes some 7 ms."""
COUNT = 300
ROUNDS = 3
"""Number of crowds, one after the other: a single one may leave the bystander unaffected by luck."""
PATH = f"{BASE}/streams?compartmentId={COMPARTMENT}"


def long_key(folder: Path) -> str:
    """The fingerprint of a key, put among the server's, of which there is no private half."""
    modulus = secrets.randbits(BITS) | 1 << BITS - 1 | 1
    public = RSAPublicNumbers(65_537, modulus).public_key()
    key = ApiKey(TENANCY, USER, fingerprint(public))
    KeyDirectory(folder).install(key, public)
    return key.fingerprint


def test_a_crowd_of_wrong_signatures_takes_turns(tmp_path: Path) -> None:
    key_id = f"{TENANCY}/{USER}/{long_key(tmp_path)}"
    signature = base64.b64encode(b"\1" + secrets.token_bytes(BITS // 8 - 1)).decode()
    authorization = (
        f'Signature version="1",keyId="{key_id}",algorithm="rsa-sha256",'
        f'headers="date (request-target) host",signature="{signature}"'
    )
    with server(oci_auth="verify", oci_auth_keys=str(tmp_path)) as started:
        target = Target(
            http=started.http.removeprefix("http://"), kafka=started.kafka, streams={}, cursors={}, open=False
        )

        def at_once() -> None:
            told = {"connection": "close", "date": formatdate(usegmt=True), "authorization": authorization}
            *head, last = request("GET", PATH, headers=told).partition(b"\r\n\r\n")[:2]
            for _ in range(ROUNDS):
                with many(target, COUNT) as connections:
                    for connection in connections:
                        connection.sendall(b"".join(head))
                    for connection in connections:
                        connection.sendall(last)
                    assert {_status(connection) for connection in connections} == {401}

        watching = Bystander(started)
        try:
            watching.harmless(at_once)
        finally:
            watching.close()


def _status(connection: socket.socket) -> int:
    return answer_of(read_all(connection))[0]
