"""Paths and methods to operations: slashes, escapes, names with slashes, and what is not there."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS
from headrace.oci.api.routing import BASE, Match, Router
from headrace.oci.app import is_ours
from headrace.oci.errors import OciError

operations.load()
ROUTER = Router(OPERATIONS.values())


def find(method: str, path: str) -> Match:
    return ROUTER.match(method, path)


def test_every_operation_is_reached_by_its_own_path() -> None:
    for name, operation in OPERATIONS.items():
        path = "/".join("x-1" if part.startswith("{") else part for part in operation.path.split("/"))
        match = find(operation.method, f"/{BASE}{path}")
        assert match.operation.name == name
        assert set(match.path.values()) <= {"x-1"}


@pytest.mark.parametrize(
    "path",
    ["/20180418/streams/a/messages", "//20180418//streams///a/messages", "/20180418/streams/a/messages/",
     "/20180418/streams/%61/messages//"],
)  # fmt: skip
def test_slashes_in_a_row_count_as_one(path: str) -> None:
    match = find("GET", path)
    assert match.operation.name == "GetMessages"
    assert match.path == {"streamId": "a"}


@pytest.mark.parametrize(
    ("sent", "name"),
    [("g", "g"), ("g%201/x", "g 1/x"), ("g%201%2Fx", "g 1/x"), ("a//b", "a//b"), ("/a", "/a"), ("%2Fa", "/a"),
     ("a/", "a/"), ("gr%C3%BCn", "grün"), ("a%25b", "a%b"), ("a+b", "a+b"), ("messages", "messages")],
)  # fmt: skip
def test_a_group_name_is_the_rest_of_the_path(sent: str, name: str) -> None:
    for method, operation in (("GET", "GetGroup"), ("PUT", "UpdateGroup")):
        match = find(method, f"/20180418/streams/ocid1.stream.x/groups/{sent}")
        assert match.operation.name == operation
        assert match.path == {"streamId": "ocid1.stream.x", "groupName": name}


@pytest.mark.parametrize(
    "path",
    ["/", "", "/20180418", "/20180418/", "/20180418/nothing", "/20180418/streams/a/messages/b", "/20180419/streams",
     "/201804180/streams", "/20180418streams", "/20180418/streams/a/groups", "/20180418/streams/a/groups/",
     "/20180418/STREAMS", "/20180418/streamingConsumption"],
)  # fmt: skip
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(OciError) as caught:
        find("GET", path)
    assert (caught.value.status, caught.value.code, caught.value.message) == (404, "NotFound", "Not Found")


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])
def test_other_methods_get_the_allowed_ones(method: str) -> None:
    with pytest.raises(OciError) as caught:
        find(method, "/20180418/streams/a/messages")
    assert (caught.value.status, caught.value.code) == (405, "MethodNotAllowed")
    assert caught.value.headers == {"allow": "GET, POST"}


@pytest.mark.parametrize("part", ["%ff", "%c3%28", "x" * 257])
def test_a_parameter_that_is_no_text_or_too_long_is_refused(part: str) -> None:
    with pytest.raises(OciError) as caught:
        find("GET", f"/20180418/streams/{part}/messages")
    assert caught.value.status == 400
    assert "streamId" in caught.value.message


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60))
def test_any_path_is_an_operation_or_an_error_of_ours(path: str) -> None:
    for method in ("GET", "POST"):
        with contextlib.suppress(OciError):
            find(method, f"/20180418/{path}")


def test_which_paths_are_this_listeners() -> None:
    assert all(map(is_ours, ["/20180418", "/20180418/x", "//20180418//streams"]))
    assert not any(map(is_ours, ["/", "", "/healthz", "/20180418x", "/x/20180418", "/2018041"]))
