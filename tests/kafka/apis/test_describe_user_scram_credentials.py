"""DescribeUserScramCredentials: users by name (KIP-554)."""

from tests.harness.wire import Wire

from headrace.protocol.messages import (
    DescribeUserScramCredentialsRequest,
)
from headrace.testing import InProcessServer


def test_users_are_described_by_name(login_server: InProcessServer) -> None:
    names = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in ("jane", "joe", "jim", "jim")]
    with Wire(login_server.kafka) as client:
        results = client.ask(DescribeUserScramCredentialsRequest(users=names), 0).results
    assert [(each.user, each.error_code) for each in results] == [("jane", 0), ("joe", 91), ("jim", 92)]
