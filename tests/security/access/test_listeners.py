"""Kafka's settings of listeners, read."""

import pytest

from headrace.security.access.listeners import Listener, Protocol, parse
from headrace.server.config import SettingsError, load
from headrace.text.addresses import Address

MAP = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"


def test_listeners_are_read_as_kafka_writes_them() -> None:
    assert parse(
        " PLAINTEXT://127.0.0.1:0 , sasl_ssl://:9093,IN://[::1]:9094", MAP + ",in:ssl", "IN://h.example:1"
    ) == (
        Listener("PLAINTEXT", Protocol.PLAINTEXT, Address("127.0.0.1", 0)),
        Listener("SASL_SSL", Protocol.SASL_SSL, Address("0.0.0.0", 9093)),
        Listener("IN", Protocol.SSL, Address("::1", 9094), Address("h.example", 1)),
    )


@pytest.mark.parametrize(
    ("listeners", "protocols", "advertised", "told"),
    [
        ("127.0.0.1:9092", MAP, "", "expected NAME://HOST:PORT"),
        ("SSL://h:70000", MAP, "", "expected NAME://HOST:PORT"),
        (",", MAP, "", "found nothing"),
        ("X://h:1", MAP, "", "what X speaks is not known"),
        ("SSL://h:1,ssl://h:2", MAP, "", "SSL is there twice"),
        ("SSL://h:1,PLAINTEXT://h:1", MAP, "", "SSL and PLAINTEXT are both at h:1"),
        ("SSL://h:1", "SSL=SSL", "", "expected NAME:PROTOCOL"),
        ("SSL://h:1", "SSL:TLS", "", "expected NAME:PROTOCOL"),
        ("SSL://h:1", MAP, "PLAINTEXT://h:1", "listeners has no PLAINTEXT; it has SSL"),
        ("SSL://h:1", MAP, "SSL://0.0.0.0:1", "clients cannot connect to that"),
        ("SSL://h:1", MAP, "SSL://[::]:1", "clients cannot connect to that"),
        ("SSL://h:1", MAP, "SSL://h:0", "clients cannot connect to that"),
    ],
)
def test_errors_are_reported(listeners: str, protocols: str, advertised: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(listeners, protocols, advertised)


def test_one_listener_is_what_there_is_without_them() -> None:
    options, _, _ = load({"kafka": "127.0.0.1:1", "advertise": "h:2"}, environ={})
    assert options.listeners == (Listener("PLAINTEXT", Protocol.PLAINTEXT, Address("127.0.0.1", 1), Address("h", 2)),)


@pytest.mark.parametrize(
    ("flags", "settings", "told"),
    [
        ({"kafka": "h:1"}, ["listeners=SSL://h:1"], "--kafka h:1 and listeners say the same thing twice"),
        ({"advertise": "h:1"}, ["listeners=SSL://h:1"], "--advertise h:1 and listeners say the same thing twice"),
        ({"advertise": "0.0.0.0:9092"}, [], "clients cannot connect to '0.0.0.0:9092'; name a host and a port"),
        ({"advertise": "[::]:9092"}, [], "clients cannot connect to"),
        ({"advertise": "[::0]:9092"}, [], "clients cannot connect to"),
        ({"advertise": "[0:0:0:0:0:0:0:0]:9092"}, [], "clients cannot connect to"),
        ({"advertise": "[::ffff:0.0.0.0]:9092"}, [], "clients cannot connect to"),
        ({"advertise": "0:9092"}, [], "clients cannot connect to"),
        ({"advertise": "0x0.0:9092"}, [], "clients cannot connect to"),
        ({"advertise": "h:0"}, [], "clients cannot connect to"),
        ({}, ["advertised.listeners=SSL://h:1"], "advertised.listeners is about listeners"),
        ({}, ["listeners=h:1"], "expected NAME://HOST:PORT"),
        ({"http": "ftp://h:1"}, [], "expected HOST:PORT or https://HOST:PORT"),
    ],
)
def test_the_server_does_not_start_with_half_of_it(flags: dict[str, str], settings: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(flags, settings, environ={})


def test_http_may_have_a_scheme() -> None:
    for text, https in (("h:1", False), ("http://h:1", False), ("https://h:1", True)):
        options, _, _ = load({"http": text}, environ={})
        assert (options.http, options.http_tls) == (Address("h", 1), https)
