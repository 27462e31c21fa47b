from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.demo import cancellations
from headrace.demo.flights import Figure, Tally


def test_the_canceled_ones_of_all_flights() -> None:
    tally = Tally()
    for carrier, delay in (("UA", 10), ("UA", None), ("B6", 3)):
        tally.add(carrier, 1, delay)
    one = Figure(1, 0, 0)
    assert cancellations.of(tally.figures()) == {("UA", 1): one, ("UA", None): one, (None, 1): one, (None, None): one}


def test_only_committed_records_are_counted(headrace_kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": headrace_kafka})
    admin.create_topics([NewTopic(cancellations.TOPIC, 2)])[cancellations.TOPIC].result(60)
    producer = Producer({"bootstrap.servers": headrace_kafka, "transactional.id": "cancelled"})
    producer.init_transactions(60)
    for carrier, commit in (("UA", True), ("B6", False), ("UA", True)):
        producer.begin_transaction()
        producer.produce(cancellations.TOPIC, f'{{"carrier":"{carrier}","month":2,"dep_delay":null}}', partition=0)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    expected = Tally()
    expected.add("UA", 2, None)
    expected.add("UA", 2, None)
    assert cancellations.read(headrace_kafka, 2) == expected.figures()
