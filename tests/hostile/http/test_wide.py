"""Hundreds of requests for all partitions of a stream of maximum size affect no other client."""

import json
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

from headrace.testing import server
from headrace.testing.process import Server
from tests.hostile.http.attacking import BASE, COMPARTMENT, Target, many, read_all, request
from tests.hostile.http.bystander import Bystander

PARTITIONS = 10_000
_CLOSE = {"connection": "close"}


@pytest.fixture(scope="module")
def wide() -> Iterator[tuple[Target, Server]]:
    with server(oci_auth="off") as started:
        target = Target(
            http=started.http.removeprefix("http://"), kafka=started.kafka, streams={}, cursors={}, open=True
        )
        details = {"name": "wide", "partitions": PARTITIONS, "compartmentId": COMPARTMENT}
        stream = target.streams["wide"] = target.done("POST", "/streams", details)["id"]
        group = {"groupName": "g", "type": "TRIM_HORIZON", "instanceName": "a"}
        target.cursors["g"] = target.done("POST", f"/streams/{stream}/groupCursors", group)["value"]
        yield target, started


@pytest.mark.parametrize(
    ("count", "method", "path", "body"),
    [
        (200, "GET", "groups/g", b""),
        (200, "GET", "messages?cursor={cursor}", b""),
        (20, "PUT", "groups/g", json.dumps({"type": "LATEST"}).encode()),
    ],
)
def test_a_request_about_all_partitions_affects_no_other_client(
    wide: tuple[Target, Server], count: int, method: str, path: str, body: bytes
) -> None:
    target, started = wide
    there = f"{BASE}/streams/{target.streams['wide']}/{path.format(cursor=quote(target.cursors['g']))}"

    def ask() -> None:
        with many(target, count) as connections:
            for connection in connections:
                connection.sendall(request(method, there, body, _CLOSE))
            statuses = [read_all(connection).split()[1] for connection in connections]
        # A slow machine does not finish all of them within 25 s.
        assert statuses[0] == b"200"
        assert set(statuses) <= {b"200", b"503"}

    with closing(Bystander(started)) as bystander:
        print(bystander.harmless(ask))
