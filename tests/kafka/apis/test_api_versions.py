"""ApiVersions: what is registered, in every format that clients ask in (KIP-511)."""

import pytest
from tests.harness.wire import Wire

from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)

apis.load()  # as the listener does


SOFTWARE = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def test_api_versions_newer_than_ours_is_answered_in_the_oldest_format(wire: Wire) -> None:
    wire.send_frame(wire.head(18, 99, 5) + b"\x00unknown fields")
    frame = wire.receive_frame()
    answer = ApiVersionsResponse.decode(frame, 4, 0)
    assert frame[:4] == (5).to_bytes(4, "big")
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert ranges[18] == (0, 4)
    # The connection lives on, and the client asks again.
    assert wire.ask(SOFTWARE, ranges[18][1]).error_code == 0


def test_the_header_of_an_api_versions_answer_has_no_tagged_fields(wire: Wire) -> None:
    frame = wire.head(18, 3, 9) + b"".join(SOFTWARE.encode(3))
    wire.send_frame(frame)
    answer = wire.receive_frame()
    assert answer[:4] == (9).to_bytes(4, "big")
    assert answer[4:6] == b"\x00\x00", "the error code follows the correlation id at once"


def test_api_versions_lists_exactly_the_registered_apis(wire: Wire) -> None:
    answer = wire.ask(SOFTWARE, 3)
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {key: (api.oldest, api.newest) for key, api in APIS.items()}
    assert told[0][0] == 0, "old librdkafka compresses only where Produce 0 is offered"
    assert not told.keys() & {24, 25, 26, 28}, "no transactions"
    assert not told.keys() & {71, 72}, "clients manage without, and break on half-made ones"


@pytest.mark.parametrize("name", ["", "-raw", "raw-", "r aw", "räw"])
def test_a_clients_software_name_is_checked(wire: Wire, name: str) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3)
    assert answer.error_code == Code.INVALID_REQUEST
    assert wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version=name), 3).error_code
    assert wire.ask(SOFTWARE, 3).error_code == 0
