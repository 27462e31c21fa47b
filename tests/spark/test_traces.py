"""One trace over the Kafka protocol, the OCI API and the archive, as an OpenTelemetry receiver gets it."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from tests.harness.otlp import Receiver, receiver
from tests.oci.conftest import COMPARTMENT, Api, details

from headrace.server.config import StartError
from headrace.testing import InProcessServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACES = [f"{number:032x}" for number in range(0xA1, 0xA5)]


def parent(trace: str, flags: str = "01") -> str:
    return f"00-{trace}-00000000000000b7-{flags}"


@pytest.fixture
def otlp() -> Iterator[Receiver]:
    with receiver() as started:
        yield started


def consumed(server: InProcessServer, count: int) -> list[dict[str, str | bytes | None]]:
    """The headers of a topic's records, and their values."""
    reader = Consumer({"bootstrap.servers": server.kafka, "group.id": "readers", "auto.offset.reset": "earliest"})
    reader.subscribe(["traced"])
    found: list[dict[str, str | bytes | None]] = []
    while len(found) < count:
        for message in reader.consume(count - len(found), 1):
            assert message.error() is None
            found.append({"value": message.value(), **dict(message.headers() or [])})
    reader.close()
    return found


@pytest.mark.spark
def test_one_trace_leads_over_both_apis_and_into_the_archive(
    spark: "SparkSession", otlp: Receiver, tmp_path: Path
) -> None:
    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415

    from_kafka, from_oci, unsampled, never_sent = TRACES
    with InProcessServer(oci_auth="off", headrace_traces_endpoint=otlp.url) as server:
        producer = Producer({"bootstrap.servers": server.kafka, "compression.type": "zstd", "linger.ms": 60_000})
        # One batch: they wait for each other until the flush.
        for trace, flags in ((from_kafka, "01"), (unsampled, "00")):
            producer.produce("traced", b"by kafka", headers=[("traceparent", parent(trace, flags).encode())])
        producer.produce("traced", b"plain")
        assert producer.flush(60) == 0

        api = Api(server.http)
        stream = api.done("GET", f"/streams?compartmentId={COMPARTMENT}&name=traced")[0]["id"]
        path = f"/streams/{stream}/messages"
        api.done("POST", path, details((None, b"by oci")), {"traceparent": parent(from_oci)})
        api.done("POST", path, details((None, b"no parent")), {"traceparent": parent(from_oci).upper()})
        got = api.get(stream, api.cursor(stream)).json
        assert [base64.b64decode(each["value"]) for each in got] == [
            b"by kafka", b"by kafka", b"plain", b"by oci", b"no parent",
        ]  # fmt: skip
        api.close()

        headers = {each["value"]: str(each.get("traceparent")) for each in consumed(server, 5)}
        assert headers[b"by oci"].startswith(f"b'00-{from_oci}")
        assert headers[b"no parent"] == headers[b"plain"] == "None"

        settings = ArchiveSettings(
            topics=("traced",), table=str(tmp_path / "t"), redis=server.storage, traces=otlp.url, max_rows=100
        )
        assert run(settings, once=True, spark=spark).rows == 5

    kafka, oci = otlp.of(from_kafka), otlp.of(from_oci)
    assert {(span.service, span.name) for span in kafka} == {
        ("headrace", "append traced"), ("headrace", "read traced"), ("headrace archive", "archive traced"),
    }  # fmt: skip
    assert sum(span.name == "read traced" for span in kafka) >= 2
    assert {span.parent for span in kafka} == {"00000000000000b7"}
    (append,) = [span for span in kafka if span.name == "append traced"]
    assert append.attributes["headrace.offset"] == "0"
    assert append.attributes["messaging.batch.message_count"] == "3"
    # By OCI the request is a step of its own, whose children the rest are.
    (request,) = [span for span in oci if span.name == "PutMessages"]
    assert (request.parent, request.attributes["http.response.status_code"]) == ("00000000000000b7", "200")
    rest = [span for span in oci if span is not request]
    assert {span.name for span in rest} == {"append traced", "read traced", "archive traced"}
    assert {span.parent for span in rest} == {request.span}
    assert not otlp.of(unsampled)
    assert not otlp.of(never_sent)
    assert {span.trace for span in otlp.spans} == {from_kafka, from_oci}


def test_without_the_extra_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("headrace.server.tracing", "headrace.tracing.exporter"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    server = InProcessServer(headrace_traces_endpoint="http://127.0.0.1:4318")
    with pytest.raises(StartError, match=r"install the extra `otel`: pip install "):
        server.start()
    server.close()
