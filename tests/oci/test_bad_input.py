"""Anything may be sent: the answer is one of the description's, an error has Oracle's form, and it is never a 500."""

import json
import logging
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks as conformance
from tests.oci.conftest import BASE, Api, Reply, new_stream

from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS, Nothing
from headrace.testing import InProcessServer

operations.load()
EXAMPLES = 15

# Random requests come to hundreds per operation; none of them is slow, so time is bounded by their number.
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large,
                           HealthCheck.function_scoped_fixture],
)  # fmt: skip

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["LATEST", "AT_TIME", "AT_OFFSET", "0", "-1", "2018-04-26T01:03:06Z", "9999-12-31T23:59:59Z",
                     "0001-01-01T00:00:00+14:00", "YQ==", "\x00", "\ud83d", 2**63, -(2**63), 1e308, ""]),
)  # fmt: skip
_junk = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def here(oci_server: InProcessServer) -> dict[str, str]:
    """Resources that there are, by the names of path and query parameters."""
    api = Api(oci_server.http)
    stream, _ = new_stream(api, 2)
    api.put(stream, (b"k", b"v"))
    found = {"streamId": stream, "cursor": api.group_cursor(stream, "g", instanceName="i"), "groupName": "g"}
    api.close()
    return found


@pytest.fixture(scope="module")
def described(oci_server: InProcessServer) -> Any:
    return schemathesis.openapi.from_url(f"{oci_server.http}{BASE}/openapi.json")


def no_failure_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    assert "an operation failed" not in caplog.text


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_requests_made_from_the_description(
    described: Any, here: dict[str, str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Schemathesis makes requests that keep to it and such that do not; the answers keep to it always."""
    operation = OPERATIONS[name]
    path = f"{BASE}{operation.path.replace(':rest', '')}"
    found = described[path][operation.method]
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    strategies = [found.as_strategy(generation_mode=mode) for mode in modes]
    checks = [
        schemathesis.checks.not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_headers_conformance,
        conformance.response_schema_conformance,
    ]

    @bounded
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(st.one_of(*strategies))
        for place in (case.path_parameters, case.query):
            for parameter in sorted(here.keys() & (place or {}).keys()):
                if data.draw(st.booleans()):
                    place[parameter] = here[parameter]
        response = case.call()
        case.validate_response(response, checks=checks)

    with caplog.at_level(logging.INFO):
        run()
    no_failure_of_ours(caplog)


def _fields(kind: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


@pytest.mark.parametrize("name", sorted(name for name, each in OPERATIONS.items() if each.body is not None))
def test_bodies_with_the_right_names_and_anything_in_them(
    oci_server: InProcessServer, here: dict[str, str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    operation = OPERATIONS[name]
    names = _fields(operation.body)
    path = operation.path.replace(":rest", "").format(
        streamId=here["streamId"], groupName="g", streamPoolId="x", connectHarnessId="x"
    )
    api = Api(oci_server.http)

    @bounded
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(names, _junk)) | _junk)
    def run(body: Any) -> None:
        answered_well(api.call(operation.method, path, json.dumps(body).encode("utf-8", "surrogatepass")))

    run()
    api.close()
    no_failure_of_ours(caplog)


@pytest.mark.parametrize("name", sorted(name for name, each in OPERATIONS.items() if each.query is not Nothing))
def test_queries_with_the_right_names_and_anything_in_them(
    oci_server: InProcessServer, here: dict[str, str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    from urllib.parse import urlencode  # noqa: PLC0415

    operation = OPERATIONS[name]
    names = _fields(operation.query)
    path = operation.path.format(**(here | dict.fromkeys(("workRequestId", "streamPoolId", "connectHarnessId"), "x")))
    texts = st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.integers().map(str),
        st.sampled_from([here["cursor"], here["streamId"], "ASC", "NAME", "ACTIVE", "true", ""]),
    )
    api = Api(oci_server.http)

    @bounded
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(names, texts)))
    def run(query: dict[str, str]) -> None:
        answered_well(api.call(operation.method, f"{path}?{urlencode(query)}"))

    run()
    api.close()
    no_failure_of_ours(caplog)


def answered_well(reply: Any) -> None:
    if reply.status >= 400:
        assert reply.status < 500, reply
        assert len(reply.error) == 3
        assert b"Traceback" not in reply.body
    assert reply.headers["opc-request-id"]


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40))
@bounded
def test_any_path(oci_server: InProcessServer, path: str) -> None:
    api = Api(oci_server.http)
    for method in ("GET", "DELETE"):
        answered_well(api.call(method, f"/{path}"))
    api.close()


_names = st.sampled_from(["opc-request-id", "if-match", "opc-retry-token", "content-type", "date", "authorization",
                          "x-headrace-fault", "x-content-sha256"])  # fmt: skip
_latin = st.characters(min_codepoint=32, max_codepoint=255, exclude_categories=["Cc"])


# A bare number would be a fault asked for, 500 among them.
@given(st.dictionaries(_names, st.text(_latin, max_size=30).filter(lambda text: not text.strip().isdigit())))
@bounded
def test_any_headers(oci_server: InProcessServer, here: dict[str, str], headers: dict[str, str]) -> None:
    api = Api(oci_server.http)
    answered_well(api.call("GET", f"/streams/{here['streamId']}", headers=headers))
    answered_well(api.call("PUT", f"/streams/{here['streamId']}", {"freeformTags": {}}, headers))
    api.close()


def test_failures_are_found_at_all() -> None:
    """The checks above are no good if none of them ever fails."""
    with pytest.raises(AssertionError):
        answered_well(Reply(500, {"content-type": "application/json", "opc-request-id": "x"}, b"{}"))
