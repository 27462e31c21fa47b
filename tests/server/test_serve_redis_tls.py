"""A Redis of Debian's that takes TLS, its own authority's certificates and users with passwords only."""

import datetime as dt
from pathlib import Path

import pytest
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer, debian_redis_program
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.security.tls.files import create
from headrace.testing import ServerFailed, server

pytestmark = pytest.mark.apt


def test_tls_to_a_redis_with_a_user_and_a_password_from_a_file(tmp_path: Path) -> None:
    made = create(tmp_path / "certificates", (), "headrace", dt.datetime.now(dt.UTC))
    foreign = create(tmp_path / "foreign", (), "headrace", dt.datetime.now(dt.UTC))
    [port] = free_ports(1)
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(made.server),
        "tls-key-file": str(made.server),
        "tls-ca-cert-file": str(made.authority),
        "requirepass": "secret",
    }
    (tmp_path / "password").write_text("secret")
    with RedisServer(debian_redis_program(), options):
        client = f"ssl_certfile={made.client}&ssl_keyfile={made.client}"
        arguments = ["--redis-password-file", str(tmp_path / "password")]
        url = f"rediss://default@127.0.0.1:{port}/1?{client}"
        with (
            server(data=tmp_path / "d", arguments=[*arguments, "--redis", url, "--redis-ca", str(made.authority)]) as s,
            Wire(s.kafka) as wire,
        ):
            wire.create("flights")
            assert wire.produce("flights", batch(b"x")).error_code == Code.NONE
            assert "secret" not in s.storage + s.log()
        for wrong in (
            [*arguments, "--redis", url],
            [*arguments, "--redis", url, "--redis-ca", str(foreign.authority)],
            [*arguments, "--redis", f"rediss://default@127.0.0.1:{port}/1", "--redis-ca", str(made.authority)],
            [*arguments, "--redis", f"redis://default@127.0.0.1:{port}/1"],
        ):
            with pytest.raises(ServerFailed), server(data=tmp_path / "d", arguments=wrong):
                pass
