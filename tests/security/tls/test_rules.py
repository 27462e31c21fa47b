"""With ACLs, the name in a client certificate is the principal."""

import datetime as dt
import ssl
from pathlib import Path

from structlog.testing import capture_logs
from tests.harness.wire import Wire

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.security.tls.files import create
from headrace.testing import InProcessServer


def test_a_certificates_name_is_asked_about(tmp_path: Path) -> None:
    made = create(tmp_path / "tls", ["127.0.0.1"], "client", dt.datetime.now(dt.UTC))
    (tmp_path / "keys").mkdir()
    with InProcessServer(
        listeners="SSL://127.0.0.1:0",
        ssl_keystore_location=made.server,
        ssl_truststore_location=made.authority,
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=([^,]+).*$/$1/",
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:client",
        oci_auth="verify",
        oci_auth_keys=tmp_path / "keys",
    ) as server:
        context = ssl.create_default_context(cafile=str(made.authority))
        context.load_cert_chain(made.client)
        with Wire(server.kafka) as wire, capture_logs() as lines:
            wire.socket = context.wrap_socket(wire.socket, server_hostname="127.0.0.1")
            wire.create("orders")
        told = [(line["event"], line["principal"]) for line in lines if line["event"] in {"logged in", "changed"}]
    assert told == [("logged in", "User:client"), ("changed", "User:client")]
