"""A registry that answers in any way: a record's schema ID stops no other record, and costs few requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.errors import OptionError, StoreUnavailable
from headrace.lakehouse.decoders.confluent import WireDecoder
from headrace.lakehouse.decoders.schema_registry import Registry, RegistryRefused, Schema

GOOD = json.dumps({"schema": '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'}).encode()
VALUE = b"\x0a"
NOTHING = pa.schema([])


class Answers(BaseHTTPRequestHandler):
    """What the test gives for each path; 404 for others."""

    given: dict[str, tuple[int, bytes]]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body = self.given.get(self.path, self.given.get("", (404, b"{}")))
        self.send_response(status)
        length = len(body) + (10 if body == b"cut" else 0)
        self.send_header("content-length", str(length))
        self.end_headers()
        with suppress(ConnectionError):  # a reader takes only so much
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def answers() -> Iterator[type[Answers]]:
    made = type("Answering", (Answers,), {"given": {"/schemas/ids/1": (200, GOOD)}, "asked": []})
    server = HTTPServer(("127.0.0.1", 0), made)
    made.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


def framed(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + VALUE


def decoded(answers: Any, *numbers: int, clock: Clock | None = None) -> dict[int, str]:
    """The reasons; asserts that the values of schema 1 are decoded."""
    decoder = WireDecoder(Registry(answers.url, clock or Clock()))
    found = decoder.decode(pa.array([framed(number) for number in numbers], pa.binary()), NOTHING)
    for row, number in enumerate(numbers):
        if number == 1:
            assert row not in found.reasons
            assert found.columns[row].as_py() == {"n": 5}
    return found.reasons


UNUSABLE = [
    (400, b"", "answers 400 for /schemas/ids/7"),
    (403, b"", "answers 403 for /schemas/ids/7: this user may not read it"),
    (404, b"", "there is no schema of id 7"),
    (410, b"", "answers 410 for"),
    (422, b"{}", "answers 422 for"),
    (200, b"", "answers no schema for"),
    (200, b"<html>", "answers no schema for"),
    (200, b"\xff", "answers no schema for"),
    (200, b"[" * 100_000, "answers no schema for"),
    (200, b"[]", "answers no schema for"),
    (200, b"null", "answers no schema for"),
    (200, b'{"schema": 1}', "answers no schema for"),
    (200, b'{"schema": "' + b"x" * (4 << 20) + b'"}', "answers more than 4 MiB for"),
    (200, b'{"schema": "x", "schemaType": 1}', "where a text belongs"),
    *(
        (200, b'{"schema": "x", "references": ' + one + b"}", "references that cannot be read")
        for one in (
            b"1",
            b'"x"',
            b"[1]",
            b"[null]",
            b'{"a": 1}',
            b"[{}]",
            b'[{"name": "x"}]',
            b'[{"name": "x", "subject": "s"}]',
            b'[{"name": "x", "subject": "s", "version": "latest"}]',
            b'[{"name": "x", "subject": "s", "version": null}]',
            b'[{"name": "x", "subject": "s", "version": 1e999}]',
            b'[{"name": "x", "subject": "\\ud800", "version": 1}]',
        )
    ),
    (200, b'{"schema": "x", "references": [{"name": 1, "subject": "s", "version": 1}]}', "where a text belongs"),
    (200, b'{"schema": "x", "references": [{"name": "x", "subject": "s", "version": 1}]}', "does not have"),
]


@pytest.mark.parametrize(("status", "body", "why"), UNUSABLE)
def test_an_id_without_a_usable_schema_stops_no_other_record(
    answers: type[Answers], status: int, body: bytes, why: str
) -> None:
    answers.given["/schemas/ids/7"] = status, body
    reasons = decoded(answers, 7, 1, 7, 1)
    assert sorted(reasons) == [0, 2]
    assert why in reasons[0]
    assert answers.asked.count("/schemas/ids/7") == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 304])
def test_a_registry_that_may_answer_later_is_waited_for(answers: type[Answers], status: int) -> None:
    answers.given["/schemas/ids/7"] = status, b""
    with pytest.raises(StoreUnavailable, match=f"answers {status} for /schemas/ids/7"):
        decoded(answers, 7, 1)


def test_an_answer_that_ends_early_is_asked_for_again(answers: type[Answers]) -> None:
    answers.given["/schemas/ids/7"] = 200, b"cut"
    with pytest.raises(StoreUnavailable, match="does not answer"):
        decoded(answers, 7, 1)


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_refuses_every_request_stops_the_archive(answers: type[Answers], status: int) -> None:
    answers.given = {"": (status, b"")}
    with pytest.raises(RegistryRefused, match=f"answers {status} for /schemas/ids/7: give user and password"):
        decoded(answers, 7)


def test_a_page_in_place_of_a_registry_is_no_reason_for_dead_letters(answers: type[Answers]) -> None:
    answers.given = {"": (200, b"<html>we are back soon</html>")}
    with pytest.raises(StoreUnavailable, match="is no schema registry"):
        decoded(answers, 7)


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) - 1])
def test_ids_beyond_31_bits_are_not_asked_for(answers: type[Answers], number: int) -> None:
    answers.given[f"/schemas/ids/{number}"] = 500, b""
    assert decoded(answers, number, 1) == {0: f"there is no schema of id {number}"}
    assert answers.asked == ["/schemas/ids/1"]


@pytest.mark.parametrize(("status", "body"), [(404, b""), (422, b""), (200, b'{"schema": "x", "references": [1]}')])
def test_an_unknown_id_is_asked_for_again_after_30_s(answers: type[Answers], status: int, body: bytes) -> None:
    clock = Clock()
    registry = Registry(answers.url, clock)  # type: ignore[attr-defined]
    answers.given["/schemas/ids/7"] = status, body

    def kept() -> Schema | str | None:
        try:
            return registry.schema(7)
        except OptionError as error:
            return str(error)

    first = kept()
    answers.given["/schemas/ids/7"] = 200, GOOD
    for clock.now in (0.0, 29.9):
        assert kept() == first
    assert answers.asked == ["/schemas/ids/7"]
    clock.now = 30.0
    assert isinstance(kept(), Schema)
    assert isinstance(kept(), Schema)
    assert answers.asked == ["/schemas/ids/7"] * 2


def test_a_batch_asks_for_few_unknown_ids(answers: type[Answers]) -> None:
    numbers = [*range(1_000, 1_200), 1, 1]
    reasons = decoded(answers, *numbers)
    assert sorted(reasons) == list(range(200))
    assert len(answers.asked) == 21
    assert reasons[0] == "there is no schema of id 1000"
    assert reasons[199] == "schema 1199 was not looked up: the batch has more than 20 ids without a schema"


def test_ids_with_schemas_have_no_bound(answers: type[Answers]) -> None:
    answers.given |= {f"/schemas/ids/{number}": (200, GOOD) for number in range(2, 60)}
    assert decoded(answers, *range(1, 60)) == {}
