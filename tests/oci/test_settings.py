"""Settings of the OCI API, given like the broker's."""

import pytest

from headrace.oci.settings import OCI_KEYS, OciSettings
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
