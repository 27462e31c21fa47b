"""Names of certificates as principals: the examples of Kafka's documentation and KIP-371, and mistakes."""

import pytest

from headrace.security.access.principal import Mapping

NAME = "CN=kafka-client,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, DEFAULT", "CN=serviceuser,OU=ServiceUsers,O=U", "serviceuser"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", NAME, NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", NAME, None),
        ("RULE:^CN=(.*?), OU=(.*?)$/$1@$2/L,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.-]*).*$/$1/U", NAME, "KAFKA-CLIENT"),
        ("RULE:^CN=([^,]+)(,X=(.*))?.*$/$1$3/L", "CN=Me,O=U", "me"),
        (r"RULE:^CN=a\/b$/c/", "CN=a/b", "c"),
        ("DEFAULT", "CN=" + 2000 * "a", None),
    ],
)
def test_the_first_rule_that_fits_decides(rules: str, name: str, principal: str | None) -> None:
    assert Mapping(rules).name(name) == principal


@pytest.mark.parametrize(
    "rules",
    ["CN", "RULE:a", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "RULE:a/$1/", "DEFAULTRULE:a/b/", "DEFAULT;DEFAULT"],
)
def test_a_rule_that_cannot_be_read_stops_the_start(rules: str) -> None:
    with pytest.raises(ValueError, match=r"ssl\.principal\.mapping\.rules="):
        Mapping(rules)
