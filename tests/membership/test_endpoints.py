"""Where brokers tell their clients that another one is."""

import socket

import structlog

from headrace.brokers import endpoints


def test_whoever_listens_on_every_address_and_names_none_is_told_what_others_tell() -> None:
    with structlog.testing.capture_logs() as logged:
        told = endpoints({"IN": ("::", 9092), "OUT": ("broker.example.org", 9093)})
    name = socket.gethostname()
    assert told == [("IN", name, 9092), ("OUT", "broker.example.org", 9093)]
    [warning] = logged
    assert "--advertise HOST:PORT" in warning["event"]
    assert (warning["log_level"], warning["listener"], warning["told"]) == ("warning", "IN", name)
