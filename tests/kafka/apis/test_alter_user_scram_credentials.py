"""AlterUserScramCredentials: credentials that cannot be are refused (KIP-554)."""

import pytest
from tests.harness.wire import Wire

from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from headrace.testing import InProcessServer

Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([Upsertion(name="", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p")], 93),
        ([Upsertion(name="x" * 300, mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p")], 93),
        ([Upsertion(name="joe", mechanism=0, iterations=4096, salt=b"s" * 16, salted_password=b"p")], 33),
        ([Upsertion(name="joe", mechanism=1, iterations=4095, salt=b"s" * 16, salted_password=b"p")], 93),
        ([Upsertion(name="joe", mechanism=1, iterations=16385, salt=b"s" * 16, salted_password=b"p")], 93),
        ([Upsertion(name="joe", mechanism=1, iterations=4096, salt=b"", salted_password=b"p")], 93),
        ([Upsertion(name="joe", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"")], 93),
        (2 * [Upsertion(name="joe", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p")], 92),
        ([Deletion(name="joe", mechanism=1)], 91),
    ],
)
def test_credentials_that_cannot_be_are_refused_and_change_nothing(
    login_server: InProcessServer, changes: list[object], code: int
) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, Deletion)],
        upsertions=[each for each in changes if isinstance(each, Upsertion)],
    )
    with Wire(login_server.kafka) as client:
        assert [each.error_code for each in client.ask(request, 0).results] == [code]
        described = client.ask(DescribeUserScramCredentialsRequest(users=None), 0).results
    assert [(each.user, [info.mechanism for info in each.credential_infos]) for each in described] == [("jane", [1, 2])]
