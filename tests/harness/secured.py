"""A server that requires TLS and a login, with ACLs; and login files for Spark."""

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.cli import main
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import Server, server

PASSWORD = 'päss"wörd, \\ =2C;'
"""Password of all users, with all special characters of JAAS, SCRAM and properties files."""
# For JAAS, and that for java.util.Properties.
ESCAPED = PASSWORD.replace("\\", r"\\").replace('"', r"\"").replace("\\", r"\\")
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredServer(msgspec.Struct):
    """The server, and what its clients need. `admin` may do everything."""

    server: Server
    made: GeneratedFiles

    def kafka(self, name: str = "admin") -> dict[str, Any]:
        """Options of confluent-kafka."""
        return {
            "bootstrap.servers": self.server.kafka,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.made.authority),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": name,
            "sasl.password": PASSWORD,
            "log_level": 0,
        }

    def properties(self, path: Path, name: str, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> Path:
        """A file of client settings, as Kafka's tools take it."""
        text = ESCAPED if password == PASSWORD else password
        jaas = f'{_PLAIN if mechanism == "PLAIN" else _SCRAM} required username="{name}" password="{text}";'
        path.write_text(
            "# by hand\n"
            "security.protocol = SASL_SSL\n"
            f"sasl.mechanism:{mechanism}\n"
            f"sasl.jaas.config={jaas}\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.made.authority}\n",
            "utf-8",
        )
        path.chmod(0o600)
        return path

    def add_user(self, name: str) -> None:
        """Create a user without rights."""
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(name, credential, PASSWORD.encode())
        admin = AdminClient(self.kafka())
        admin.alter_user_scram_credentials([wanted])[name].result(60)

    def allow(
        self,
        name: str,
        operation: AclOperation,
        *,
        pattern: ResourcePatternType = ResourcePatternType.LITERAL,
        **resource: str,
    ) -> None:
        """Allow a user an operation on a `topic`, `group` or `transactional_id`."""
        [(kind, named)] = resource.items()
        rule = AclBinding(
            ResourceType[kind.upper()],
            named,
            pattern,
            f"User:{name}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient(self.kafka())
        for done in admin.create_acls([rule]).values():
            done.result(60)

    def fill(self, topic: str, partitions: int, values: list[bytes]) -> None:
        """Make a topic with these values, dealt out to its partitions."""
        admin = AdminClient(self.kafka())
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
        producer = Producer(self.kafka())
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % partitions)
        assert producer.flush(60) == 0


@contextlib.contextmanager
def secured_server(folder: Path, **settings: Any) -> Iterator[SecuredServer]:
    """One with a Valkey of its own and further settings; certificates and keys are made in the folder."""
    made = create(folder / "certificates", (), "client", dt.datetime.now(dt.UTC))
    assert main.run(["oci-config", str(folder / "profile"), "--keys", str(folder / "keys")]) == 0
    (folder / "first").write_text(f"admin:{PASSWORD}\n", "utf-8")
    with server(
        listeners="SASL_SSL://127.0.0.1:0",
        ssl_keystore_location=made.server,
        authorizer_class_name=STANDARD_AUTHORIZER,
        oci_auth="verify",
        oci_auth_keys=folder / "keys",
        arguments=["--http", "https://127.0.0.1:0", "--bootstrap-user", str(folder / "first")],
        **settings,
    ) as started:
        yield SecuredServer(started, made)
