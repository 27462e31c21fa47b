"""Settings of the OCI API, given like the broker's."""

import pytest

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.oci.settings import (
    DISABLED,
    OCI_KEYS,
    UNCONFIGURED,
    OciSettings,
    kafka_login_required,
    missing_credentials,
)
from headrace.server.config import SettingsError, load
from headrace.topics.config_keys import InvalidSetting


def test_by_default_any_key_will_do_on_this_machine() -> None:
    settings = OciSettings.of()
    assert (settings.auth, settings.auth_kafka) == ("parse", "auto")
    assert (settings.auth_keys, settings.auth_tokens) == ("", "")


def test_they_are_given_with_set_and_in_the_environment() -> None:
    environ = {"HEADRACE_SET": "oci.auth=off oci.region=eu-frankfurt-1"}
    _, broker, oci = load(sets=["oci.auth=verify", "oci.auth.keys=/keys", "num.partitions=3"], environ=environ)
    assert (oci.auth, oci.auth_keys, oci.region) == ("verify", "/keys", "eu-frankfurt-1")
    assert broker.num_partitions == 3


@pytest.mark.parametrize("key", OCI_KEYS, ids=lambda key: key.name)
def test_every_key_has_a_field_of_its_name(key: object) -> None:
    known = next(each for each in OCI_KEYS if each is key)
    assert known.default is not None
    value = getattr(OciSettings.of({known.name: known.default}), known.field.removeprefix("oci_"))
    assert value == known.parse(known.default)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("oci.auht=off", "unknown setting oci.auht, did you mean oci.auth"),
        ("oci.nothing.like.it=1", "unknown setting oci.nothing.like.it"),
        ("oci.auth=maybe", "oci.auth=maybe: expected one of verify, parse, off"),
        ("oci.work.requests=1", "oci.work.requests=1: expected true or false"),
        ("oci.auth.kafka=never", "oci.auth.kafka=never: expected one of auto, required, optional"),
    ],
)
def test_a_wrong_one_is_refused_in_one_line(pair: str, message: str) -> None:
    name, _, text = pair.partition("=")
    with pytest.raises(InvalidSetting) as caught:
        OciSettings.of({name: text})
    assert str(caught.value).startswith(message)
    with pytest.raises(SettingsError) as told:
        load(sets=[pair], environ={})
    assert str(told.value).startswith(f"--set: {message}")


def test_with_acls_the_api_is_closed_until_authentication_is_chosen() -> None:
    acls = f"authorizer.class.name={STANDARD_AUTHORIZER}"
    assert load(sets=[acls], environ={})[2].closed == UNCONFIGURED
    assert load(sets=[], environ={})[2].closed == ""
    assert load(sets=["authorizer.class.name="], environ={})[2].closed == ""
    for chosen in ("verify", "parse", "off"):
        assert load(sets=[acls, f"oci.auth={chosen}"], environ={})[2].closed == ""
    assert load(sets=[acls, "oci.enable=false"], environ={})[2].closed == DISABLED
    assert load(sets=["oci.enable=false", "oci.auth=verify"], environ={})[2].closed == DISABLED
    with pytest.raises(SettingsError, match=r"oci\.auth=refuse: expected one of verify, parse, off"):
        load(sets=["oci.auth=refuse"], environ={})


def test_a_closed_api_needs_no_credentials() -> None:
    assert missing_credentials(settings(enable="false", auth="verify"), ["0.0.0.0"]) is None
    assert not kafka_login_required(settings(enable="false", auth="verify"), "0.0.0.0")


def test_logins_that_a_closed_api_would_refuse_are_not_required() -> None:
    told = missing_credentials(settings(enable="false", auth_kafka="required"), ["127.0.0.1"])
    assert told is not None
    assert told.startswith("oci.auth.kafka=required needs logins with auth tokens, and oci.enable=false refuses them")
    _, _, oci = load(sets=[f"authorizer.class.name={STANDARD_AUTHORIZER}", "oci.auth.kafka=required"], environ={})
    told = missing_credentials(oci, ["127.0.0.1"])
    assert told is not None
    assert "oci.auth=verify is not set" in told


def settings(**given: str) -> OciSettings:
    return OciSettings.of({"oci." + name.replace("_", "."): text for name, text in given.items()})


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_verifying_takes_keys(host: str) -> None:
    assert (
        missing_credentials(settings(auth="verify"), [host])
        == "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    )
    assert missing_credentials(settings(), [host]) is None


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
    told = missing_credentials(settings(auth="verify", auth_keys="/keys", **given), ["127.0.0.1", host])
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
