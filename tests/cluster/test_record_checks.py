"""Topics that check records, on several brokers: schemas of another broker, and puts that are forwarded."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import oci.retry
import pytest
from oci.streaming.models import PutMessagesDetails, PutMessagesDetailsEntry
from tests.harness.brokers import Brokers, brokers
from tests.harness.wire import Wire, batch
from tests.schema_registry.conftest import Api, record

from headrace.kafka.errors import Code
from headrace.testing.oci import OciClients

PARTITIONS = 16
VALIDATED = {"confluent_value_schema_validation": "true"}


@pytest.fixture(scope="module")
def two() -> Iterator[Brokers]:
    with brokers(2, schema_registry_enable=True) as running:
        yield running


def made(two: Brokers, topic: str, **config: str) -> dict[int, int]:
    two.asked(1, lambda wire: wire.create(topic, PARTITIONS, **config))
    return two.led(topic, PARTITIONS)


def value_of(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"rest"


@pytest.mark.parametrize("leader", [1, 2])
def test_a_schema_that_another_broker_registered_is_accepted_at_once(two: Brokers, leader: int) -> None:
    # The IDs of topics, which are random, select the leaders.
    names = (f"validated-{leader}-{number}" for number in range(99))
    topic, partition = next(
        (name, index) for name in names for index, node in made(two, name, **VALIDATED).items() if node == leader
    )
    number = Api(two.servers[3 - leader].schema_registry).register(f"{topic}-value", record())
    with Wire(two.addresses[leader]) as wire:
        answer = wire.produce(topic, batch(value_of(number), None), partition=partition)
        assert answer.error_code == 0, answer
        wrong = batch(value_of(number), b"plain", value_of(number + 1_000))
        answer = wire.produce(topic, wrong, partition=partition)
        assert answer.error_code == Code.INVALID_RECORD
        assert [each.batch_index for each in answer.record_errors] == [1, 2]


@pytest.mark.parametrize("topic", ["put-compacted", "put-validated"])
def test_a_put_through_any_broker_has_an_error_for_each_message(two: Brokers, topic: str) -> None:
    config = VALIDATED if topic == "put-validated" else {"cleanup_policy": "compact"}
    made(two, topic, **config)
    number = Api(two.servers[1].schema_registry).register(f"{topic}-value", record())
    bad = (None if topic == "put-compacted" else "k", b"plain")
    many = [("k", value_of(number)), bad, *[(str(each), value_of(number)) for each in range(20)]]
    for server in two.servers.values():
        clients = OciClients(server.http)
        [stream] = clients.admin.list_streams(compartment_id=clients.compartment_id, name=topic).data
        client = clients.stream_client(retry_strategy=oci.retry.NoneRetryStrategy())
        entries = [
            PutMessagesDetailsEntry(key=None if key is None else text(key.encode()), value=text(value))
            for key, value in many
        ]
        result: Any = client.put_messages(stream.id, PutMessagesDetails(messages=entries)).data
        assert result.failures >= 1
        rejected = result.entries[1]
        assert rejected.error == "400"
        assert ("without key" if topic == "put-compacted" else "no valid schema ID") in rejected.error_message
        assert any(each.error is None for each in result.entries), "other partitions have stored theirs"


def text(value: bytes) -> str:
    return b64encode(value).decode()
