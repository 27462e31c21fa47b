"""Addresses that brokers advertise of other brokers, to clients and to each other."""

import socket

import structlog

from headrace.server.cluster import endpoints
from headrace.server.config import load
from headrace.server.listeners import Listening


def test_a_wildcard_listener_without_an_advertised_host_gets_the_machines_name() -> None:
    with structlog.testing.capture_logs() as logged:
        told = endpoints({"IN": ("::", 9092), "OUT": ("broker.example.org", 9093)})
    name = socket.gethostname()
    assert told == [("IN", name, 9092), ("OUT", "broker.example.org", 9093)]
    [warning] = logged
    assert "--advertise HOST:PORT" in warning["event"]
    assert (warning["log_level"], warning["listener"], warning["told"]) == ("warning", "IN", name)


def test_wildcard_http_uses_the_advertised_host_or_a_guess() -> None:
    def told(**flags: str) -> tuple[str, int]:
        options, _, _ = load(flags, environ={})
        with socket.create_server(("127.0.0.1", 0)) as bound, structlog.testing.capture_logs() as logged:
            url = Listening((), bound, https=False, tls=None).http_url(options)
            return url.removesuffix(f":{bound.getsockname()[1]}"), len(logged)

    assert told(http="127.0.0.1:0") == ("http://127.0.0.1", 0)
    assert told(http="0.0.0.0:0") == (f"http://{socket.gethostname()}", 1)
    assert told(http="[::]:0", kafka="0:9092", advertise="broker.example.org:9092") == ("http://broker.example.org", 0)
