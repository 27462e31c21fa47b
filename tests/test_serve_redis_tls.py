"""A Redis of Debian's that takes TLS, its own authority's certificates and users with passwords only."""

import datetime as dt
import re
from pathlib import Path

import pytest
import redis

from headrace.kafka.errors import Code
from headrace.testing import ServerFailed, server
from headrace.tls.files import create
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer, debian_redis_program
from tests.harness.redis_cluster import wait_for
from tests.harness.wire import Wire, batch

GUIDE = (Path(__file__).parent.parent / "docs" / "guides" / "security.md").read_text()
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


def test_tls_to_a_redis_cluster_with_the_user_of_the_guide(tmp_path: Path) -> None:
    made = create(tmp_path / "certificates", (), "headrace", dt.datetime.now(dt.UTC))
    port, bus = free_ports(2)
    options = {
        "cluster-enabled": "yes",
        "cluster-port": str(bus),
        "tls-cluster": "yes",
        "tls-port": str(port),
        "tls-cert-file": str(made.server),
        "tls-key-file": str(made.server),
        "tls-ca-cert-file": str(made.authority),
        "appendonly": "yes",
    }
    (tmp_path / "password").write_text("PASSWORD")
    rules = re.search(r"^ACL SETUSER headrace on '>PASSWORD' (.*)$", GUIDE, re.MULTILINE)
    assert rules is not None
    with RedisServer(debian_redis_program(), options) as node:
        with redis.Redis(unix_socket_path=str(node.socket), decode_responses=True) as link:
            link.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            wait_for(lambda: link.cluster("info")["cluster_state"] == "ok", "the cluster to be well")
            link.execute_command("ACL", "SETUSER", "headrace", "on", ">PASSWORD", *rules[1].split())
            link.execute_command("ACL", "SETUSER", "default", "off")
        client = f"ssl_certfile={made.client}&ssl_keyfile={made.client}"
        login = ["--redis-password-file", str(tmp_path / "password"), "--redis-ca", str(made.authority)]
        url = f"rediss+cluster://headrace@127.0.0.1:{port}?{client}"
        with server(data=tmp_path / "d", arguments=[*login, "--redis", url]) as s, Wire(s.kafka) as wire:
            wire.create("flights", 3, min_insync_replicas=1)
            for partition in range(3):
                assert wire.produce("flights", batch(b"x"), partition=partition).error_code == Code.NONE
            assert "PASSWORD" not in s.storage + s.log()
        with pytest.raises(ServerFailed), server(data=tmp_path / "d", arguments=["--redis", url]):
            pass
