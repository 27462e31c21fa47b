"""Unexpected errors of Redis are logged, and not returned to clients."""

import pytest
import redis
from tests.oci.conftest import COMPARTMENT, Api, new_stream

from headrace.testing import InProcessServer


def test_unexpected_errors_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessServer(oci_auth="off") as server:
        api = Api(server.http)
        new_stream(api)
        with redis.Redis.from_url(server.storage) as link:
            (topics,) = link.scan_iter("*:topics")
            link.set(topics, "no hash")
        reply = api.call("POST", "/streams", {"name": "flights", "partitions": 1, "compartmentId": COMPARTMENT})
        api.close()
    assert reply.error == (500, "InternalServerError", "Internal error")
    assert [text for text in caplog.messages if "an operation failed" in text and "WRONGTYPE" in text]
