from typing import Any

from headrace.testing import Server


def test_brokers_list_the_addresses_for_clients(headrace: Any, running: Server) -> None:
    headrace.run("topics", "create", "led", "--partitions", "2")
    answer = headrace.json("brokers")
    (broker,) = answer["brokers"]
    assert broker["partitions"] >= 2
    del broker["partitions"]
    assert broker == {"broker": 1, "address": running.kafka, "rack": None, "controller": True}
    shown = headrace.run("brokers")
    assert shown.startswith(f"cluster {answer['cluster']}\n")
    assert running.kafka in shown
