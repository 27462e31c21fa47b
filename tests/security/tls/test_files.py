"""Certificates that `headrace tls create` makes."""

import datetime as dt
import ssl
import stat
from pathlib import Path

import pytest

from headrace.security.tls.files import create

NOW = dt.datetime.now(dt.UTC)


def test_they_are_for_their_owner_and_for_the_names_that_were_given(tmp_path: Path) -> None:
    made = create(tmp_path / "made", ("broker.example.org", "10.0.0.7"), "jane", NOW)
    for path in (made.authority, made.authority_key, made.server, made.client):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.server.parent.stat().st_mode) == 0o700
    served = ssl._ssl._test_decode_cert(str(made.server))  # type: ignore[attr-defined]
    assert {text for _, text in served["subjectAltName"]} == {
        "localhost", "127.0.0.1", "0:0:0:0:0:0:0:1", "broker.example.org", "10.0.0.7"
    }  # fmt: skip
    client = ssl._ssl._test_decode_cert(str(made.client))  # type: ignore[attr-defined]
    assert client["subject"] == ((("commonName", "jane"),),)


def test_nothing_is_overwritten_and_no_name_guessed(tmp_path: Path) -> None:
    create(tmp_path, (), "jane", NOW)
    before = (tmp_path / "server.pem").read_bytes()
    with pytest.raises(FileExistsError):
        create(tmp_path, (), "jane", NOW)
    assert (tmp_path / "server.pem").read_bytes() == before
    with pytest.raises(ValueError, match="expected a host name"):
        create(tmp_path / "other", ("a b",), "jane", NOW)
    assert not (tmp_path / "other").exists()
