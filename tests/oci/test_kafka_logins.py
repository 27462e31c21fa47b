"""Names and tokens by which Kafka clients log in to a stream pool."""

import hashlib
import os
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.broker import Broker
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.broker.logins import LoginRefused
from headrace.oci.kafka_logins import PoolLogins
from headrace.oci.settings import DISABLED, UNCONFIGURED, OciSettings
from headrace.server.config import load

POOL = "ocid1.streampool.oc1.local.aaaa"
CLUSTER = cast("Broker", object())


def logins(mode: str = "parse", tokens: Path | str = "") -> PoolLogins:
    settings = OciSettings.of({"oci.auth": mode, "oci.auth.tokens": str(tokens)})
    return PoolLogins(settings, {POOL: CLUSTER}.get)


def refused(to: PoolLogins, username: str, password: str = "token") -> LoginRefused:
    with pytest.raises(LoginRefused) as caught:
        to.admit(username, password)
    return caught.value


@pytest.mark.parametrize("mode", ["parse", "off"])
@pytest.mark.parametrize("user", ["acme/jane@example.com", "acme/default/jane", "acme/a b/j@e.c"])
def test_the_pool_in_the_name_is_the_cluster_and_any_token_will_do(mode: str, user: str) -> None:
    admitted = logins(mode).admit(f"{user}/{POOL}", "whatever")
    assert admitted.broker is CLUSTER
    assert str(admitted.principal) == f"User:{user}"
    assert admitted.principal.tenancy == "acme"


@pytest.mark.parametrize(
    "username",
    ["", "jane", POOL, f"jane/{POOL}", f"/jane/{POOL}", f"acme//{POOL}", "acme/jane/", "acme/jane/pool",
     "acme/jane/ocid1.stream.oc1.local.aaaa", f"acme/jane/{POOL}/", f"acme/jane/{POOL} "],
)  # fmt: skip
def test_a_name_of_another_form_gets_the_expected_form(username: str) -> None:
    assert str(refused(logins(), username)) == (
        "Authentication failed: the user name has to be <tenancy>/[<domain>/]<user>/<OCID of a stream pool>"
    )


def test_a_missing_pool_is_only_logged() -> None:
    error = refused(logins(), "acme/jane/ocid1.streampool.oc1.local.bbbb")
    assert str(error) == "Authentication failed: invalid username or password"
    assert error.reason == "there is no stream pool ocid1.streampool.oc1.local.bbbb"


@given(st.text(), st.text())
def test_garbage_is_refused(username: str, password: str) -> None:
    refused(logins(), username, password)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    hashed = hashlib.sha256(b"hashed one").hexdigest()
    path = tmp_path / "tokens"
    path.write_text(
        f"# user token\n\nacme/jane  first;>{{(\nacme/jane second\n  acme/default/joe\tsha256:{hashed.upper()}  \n"
        "broken\nacme/mary sha256:abc\nacme/mary sha256:xyz\n"
    )
    return path


def test_in_verify_mode_the_token_has_to_be_one_of_the_users(tokens: Path) -> None:
    gate = logins("verify", tokens)
    for user, token in (("acme/jane", "first;>{("), ("acme/jane", "second"), ("acme/default/joe", "hashed one")):
        assert gate.admit(f"{user}/{POOL}", token).broker is CLUSTER
    for user, token in (
        ("acme/jane", "First;>{("),
        ("acme/jane", ""),
        ("acme/jane", "hashed one"),
        ("acme/joe", "hashed one"),
        ("broken", ""),
        ("acme/mary", "sha256:abc"),
        ("acme/mary", "abc"),
        ("#", "user"),
    ):
        name = f"{user}/{POOL}" if "/" in user else f"acme/{user}/{POOL}"
        assert str(refused(gate, name, token)) == "Authentication failed: invalid username or password"


def test_a_wrong_token_says_nothing_of_whether_the_pool_is_there(tokens: Path) -> None:
    gate = logins("verify", tokens)
    wrong, nowhere = f"acme/jane/{POOL}", "acme/jane/ocid1.streampool.oc1.local.bbbb"
    told = {str(refused(gate, wrong, "x")), str(refused(gate, nowhere, "x")), str(refused(gate, nowhere, "second"))}
    assert len(told) == 1


def test_the_file_is_read_again_when_it_changed(tokens: Path) -> None:
    gate = logins("verify", tokens)
    name = f"acme/jane/{POOL}"
    assert gate.admit(name, "second").broker is CLUSTER
    tokens.write_text("acme/jane third\n")
    os.utime(tokens, ns=(1, 1))
    refused(gate, name, "second")
    assert gate.admit(name, "third").broker is CLUSTER
    tokens.unlink()
    refused(gate, name, "third")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe acme/jane token"])
def test_without_a_readable_file_all_clients_are_rejected(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    refused(logins("verify", path), f"acme/jane/{POOL}")
    refused(logins("verify"), f"acme/jane/{POOL}")
    refused(logins("verify", tmp_path), f"acme/jane/{POOL}")


def test_no_token_is_accepted_while_the_api_is_closed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("acme/jane secret\n")
    given = {"oci.auth": "verify", "oci.auth.tokens": str(tokens)}
    open_ = PoolLogins(OciSettings.of(given), {POOL: CLUSTER}.get)
    assert open_.admit(f"acme/jane/{POOL}", "secret").broker is CLUSTER
    disabled = PoolLogins(OciSettings.of({**given, "oci.enable": "false"}), {POOL: CLUSTER}.get)
    assert str(refused(disabled, f"acme/jane/{POOL}", "secret")) == f"Authentication failed: {DISABLED}"
    _, _, without_word = load(sets=[f"authorizer.class.name={STANDARD_AUTHORIZER}"], environ={})
    closed = PoolLogins(without_word, {POOL: CLUSTER}.get)
    assert str(refused(closed, f"acme/jane/{POOL}")) == f"Authentication failed: {UNCONFIGURED}"
