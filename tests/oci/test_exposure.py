"""Off loopback nobody gets in unverified, unless that was asked for in plain words."""

import pytest

from headrace.oci import exposure
from headrace.oci.settings import OciSettings


def settings(**given: str) -> OciSettings:
    return OciSettings.of({"oci." + name.replace("_", "."): text for name, text in given.items()})


def refusal(given: OciSettings, http: str, kafka: str, insecure: bool = False) -> str | None:
    return exposure.refusal(given, http, kafka, insecure=insecure)


LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::1%lo"]
ELSEWHERE = ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "fe80::1%eth0", "broker.example.org", ""]


@pytest.mark.parametrize("host", LOOPBACK)
def test_on_loopback_every_mode_will_do(host: str) -> None:
    assert exposure.is_loopback(host)
    for mode in ("parse", "off"):
        assert refusal(settings(auth=mode), host, host) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_anywhere_else_http_stays_shut_unless_signatures_are_verified(host: str) -> None:
    assert not exposure.is_loopback(host)
    for mode in ("parse", "off"):
        told = refusal(settings(auth=mode), host, "127.0.0.1")
        assert told is not None
        assert told.startswith(f"--http {host} is open to other machines, and oci.auth={mode} lets everybody in")
        assert "headrace.insecure=true" in told
        assert "\n" not in told
        assert refusal(settings(auth=mode), host, host, insecure=True) is None
    assert refusal(settings(auth="verify", auth_keys="/keys"), host, "127.0.0.1") is None


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"auth": "off"},
        {"auth_kafka": "required"},  # any password will do then
        {"auth": "verify", "auth_keys": "/keys", "auth_kafka": "optional"},
    ],
)
def test_anywhere_else_kafka_stays_shut_unless_everybody_logs_in(given: dict[str, str], host: str) -> None:
    told = refusal(settings(**given), "127.0.0.1", host)
    assert told is not None
    assert told.startswith(f"--kafka {host} is open to other machines, and its clients need no password")
    assert "headrace.insecure=true" in told
    assert refusal(settings(**given), "127.0.0.1", host, insecure=True) is None
    guarded = settings(auth="verify", auth_keys="/keys", auth_tokens="/tokens")
    assert refusal(guarded, host, host) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_verifying_takes_keys(host: str) -> None:
    assert refusal(settings(auth="verify"), host, "127.0.0.1") == (
        "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    )


@pytest.mark.parametrize(
    ("given", "host", "fine"),
    [
        ({}, "127.0.0.1", True),
        ({}, "0.0.0.0", False),
        ({"auth_tokens": "/tokens"}, "0.0.0.0", True),
        ({"auth_kafka": "optional"}, "127.0.0.1", True),
        ({"auth_kafka": "required"}, "127.0.0.1", False),
    ],
)
def test_a_login_takes_tokens(given: dict[str, str], host: str, fine: bool) -> None:
    told = refusal(settings(auth="verify", auth_keys="/keys", **given), "127.0.0.1", host)
    if fine:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(f"Kafka clients have to log in at {host}")


@pytest.mark.parametrize(
    ("given", "host", "required"),
    [
        ({}, "127.0.0.1", False),
        ({}, "0.0.0.0", False),
        ({"auth": "verify"}, "127.0.0.1", False),
        ({"auth": "verify"}, "0.0.0.0", True),
        ({"auth": "verify", "auth_kafka": "optional"}, "0.0.0.0", False),
        ({"auth_kafka": "required"}, "127.0.0.1", True),
        ({"auth": "off", "auth_kafka": "required"}, "0.0.0.0", True),
    ],
)
def test_whether_kafka_clients_have_to_log_in(given: dict[str, str], host: str, required: bool) -> None:
    assert exposure.kafka_login_required(settings(**given), host) is required
