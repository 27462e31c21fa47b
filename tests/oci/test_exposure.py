"""What verifying takes, and where Kafka clients have to log in by OCI's settings."""

import pytest

from headrace.oci.exposure import kafka_login_required, missing
from headrace.oci.settings import OciSettings


def settings(**given: str) -> OciSettings:
    return OciSettings.of({"oci." + name.replace("_", "."): text for name, text in given.items()})


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_verifying_takes_keys(host: str) -> None:
    assert missing(settings(auth="verify"), [host]) == "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    assert missing(settings(), [host]) is None


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
    told = missing(settings(auth="verify", auth_keys="/keys", **given), ["127.0.0.1", host])
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
    assert kafka_login_required(settings(**given), host) is required
