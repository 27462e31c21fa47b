"""The page of the broker: clients, requests, durations and CPU."""

import re
from html import unescape

from confluent_kafka import Consumer, Producer
from tests.console.visiting import EVIL, ask, create, safe
from tests.harness.wire import Wire, fetch_request

from headrace.protocol.messages import HeartbeatRequest, JoinGroupRequest
from headrace.testing import InProcessServer


def rows(html: str, heading: str) -> list[list[str]]:
    """The cells of a table by its heading."""
    card = html.partition(f"<h2>{heading}")[2].partition("</section>")[0]
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", card.partition("<tbody>")[2], re.DOTALL)
    ]


def test_clients_are_listed_by_client_id_and_software(server: InProcessServer) -> None:
    producer = Producer({"bootstrap.servers": server.kafka, "client.id": "web-shop"})
    producer.produce("ordered", b"v")
    assert producer.flush(60) == 0
    with Wire(server.kafka, client_id=EVIL) as wire:
        wire.metadata("ordered")
        clients = rows(safe(ask(server, "/brokers")), "Kafka clients")
    (shop,) = {tuple(row[:3]) for row in clients if row[0] == "web-shop"}
    assert re.fullmatch(r"confluent-kafka-python [0-9.]+-rdkafka-[0-9.]+", shop[1])
    assert shop[2] == "127.0.0.1"
    (evil,) = [row for row in clients if "alert" in row[0]]
    assert "\\x1b[31m\\u202e" in evil[0]
    assert evil[1] == "not reported"


def test_joins_and_rebalances_of_a_healthy_group_are_no_errors(server: InProcessServer) -> None:
    create(server, ("calm", 1))

    def errors() -> dict[str, int]:
        found = rows(ask(server, "/brokers").html, "Requests")
        return {name: int(count.replace(",", "")) for name, _, _, _, _, count in found}

    before = errors()
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "calm", "client.id": "calm-1"})
    consumer.subscribe(["calm"])
    while not consumer.assignment():
        consumer.poll(0.1)
    # Counted by code, as in Kafka, but no error of the page.
    metrics = ask(server, "/metrics").body.decode()
    assert 'api="JoinGroup",error="MEMBER_ID_REQUIRED"' in metrics
    assert errors()["JoinGroup"] == before.get("JoinGroup", 0)
    consumer.close()
    with Wire(server.kafka) as wire:
        wire.ask(HeartbeatRequest(group_id="calm", generation_id=1, member_id="unknown"), 3)
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id="calm", session_timeout_ms=1, rebalance_timeout_ms=1, member_id="", protocol_type="consumer",
            protocols=protocols,
        )  # fmt: skip
        wire.ask(join, 5)
    after = errors()
    assert after["Heartbeat"] == before.get("Heartbeat", 0) + 1, "an unknown member is an error"
    assert after["JoinGroup"] == before.get("JoinGroup", 0) + 1, "an invalid session timeout is an error"


def test_the_duration_of_a_fetch_excludes_its_wait_for_records(server: InProcessServer) -> None:
    create(server, ("waited", 1))
    with Wire(server.kafka) as wire:
        for _ in range(4):
            wire.ask(fetch_request([("waited", 0, 0)], max_wait_ms=400), 4)
    metrics = ask(server, "/metrics").body.decode()
    found = re.search(r'duration_seconds_sum\{listener="PLAINTEXT",api="Fetch"\} ([0-9.e-]+)', metrics)
    assert found is not None
    assert float(found[1]) < 1.2, "four waits of 400 ms are 1.6 s"


def test_cpu_is_in_percent(server: InProcessServer) -> None:
    server.clock.advance(seconds=2)
    assert re.search(r"CPU \d+(\.\d)?% of one core, .* in all", ask(server, "/brokers").text)
