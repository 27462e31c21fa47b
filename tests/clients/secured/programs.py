"""Clients that are programs: Java's and Go's libraries in a small program each, Kafka's own tools, kcat."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients.secured.interface import CERTIFICATE, MECHANISMS, Login, Refused
from tests.harness import fetching
from tests.harness.apache_kafka import jars

_HERE = Path(__file__).parent
_BUILD_S, _RUN_S = 600, 180
_REFUSED = 3
"""The status of the programs here when they were not let in."""


def _run(command: Sequence[str], *, sent: str = "") -> tuple[int, str, str]:
    """Status, output and what it says."""
    ended = subprocess.run(command, input=sent, capture_output=True, encoding="utf-8", timeout=_RUN_S, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def _values(ended: tuple[int, str, str]) -> list[str]:
    status, output, said = ended
    if status == _REFUSED:
        raise Refused(output.strip())
    assert status == 0, output + said
    return list(json.loads(output.splitlines()[-1]))


def java_properties(login: Login, folder: Path) -> dict[str, str]:
    """The settings of Java's clients; a token is put into a file in `folder`."""
    found = {
        "bootstrap.servers": login.address,
        "security.protocol": login.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(login.authority),
    }
    if login.mechanism == CERTIFICATE:
        return found | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(login.certificate)}
    security = "org.apache.kafka.common.security"
    found["sasl.mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(login.token)
        return found | {
            "sasl.jaas.config": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{security}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": f"{security}.oauthbearer.FileJwtRetriever",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        }
    module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
    name, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (login.name, login.password))
    found["sasl.jaas.config"] = f'{security}.{module} required username="{name}" password="{password}";'
    return found


def _write_properties(login: Login, folder: Path) -> Path:
    """A properties file, which is Latin-1 with escapes."""
    lines = []
    for name, value in java_properties(login, folder).items():
        escaped = value.replace("\\", "\\\\").encode("ascii", "backslashreplace").decode()
        # Python writes what Latin-1 has as \xe4, Java reads \u00e4 only.
        lines.append(f"{name}={escaped}".replace("\\x", "\\u00"))
    file = folder / "client.options"
    file.write_text("\n".join(lines))
    return file


def _java_command(folder: Path, *words: str) -> list[str]:
    token = (folder / "token").as_uri()
    return [
        "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dfile.encoding=UTF-8",
        # Where tokens may be read from is for who starts the JVM to say (KIP-1139 and before).
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token}",
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={folder / 'token'}",
        f"-Dlog4j2.configurationFile={_HERE / 'java' / 'log4j2.properties'}",
        *words,
    ]  # fmt: skip


def _java(folder: Path, *words: str, sent: str = "") -> tuple[int, str, str]:
    return _run(_java_command(folder, *words), sent=sent)


class Java:
    """Java's own clients, KafkaProducer and KafkaConsumer."""

    name: ClassVar[str] = "java"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Build the program in `folder`."""
        self._folder = folder
        fetching.run(["javac", "-d", str(folder), "-cp", jars(), "Secured.java"], _HERE / "java", each_s=_BUILD_S / 3)

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = str(_write_properties(login, folder))
            return _values(_java(folder, "-cp", f"{self._folder}:{jars()}", "Secured", file, topic, *values))

    def following(self, addresses: str, topic: str) -> tuple[list[str], list[str]]:
        """The command that writes the lines of its input and reads them, where there are no logins; its first lines."""
        file = self._folder / "plain.properties"
        file.write_text(f"bootstrap.servers={addresses}\n")
        return _java_command(self._folder, "-cp", f"{self._folder}:{jars()}", "Secured", str(file), topic), []


class KafkaTools:
    """kafka-topics, kafka-console-producer and kafka-console-consumer."""

    name: ClassVar[str] = "kafka-tools"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Nothing is to be built."""
        jars()

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            brings = ["--bootstrap-server", login.address, "--command-config", str(_write_properties(login, folder))]

            def tool(main: str, *words: str, sent: str = "") -> tuple[int, str, str]:
                return _java(folder, "-cp", jars(), f"org.apache.kafka.tools.{main}", *brings, *words, sent=sent)

            status, output, said = tool("TopicCommand", "--create", "--topic", topic)
            if status:
                raise Refused(output + said)
            sent = "".join(f"{value}\n" for value in values)
            status, output, said = tool("ConsoleProducer", "--topic", topic, sent=sent)
            assert (status, "ERROR" in output + said) == (0, False), output + said
            status, output, said = tool(
                "consumer.ConsoleConsumer", "--topic", topic, "--group", topic, "--from-beginning",
                "--max-messages", str(len(values)), "--timeout-ms", "60000",
            )  # fmt: skip
            assert status == 0, output + said
            return output.splitlines()


class FranzGo:
    """franz-go."""

    name: ClassVar[str] = "franz-go"
    mechanisms: ClassVar[Sequence[str]] = MECHANISMS

    def __init__(self, folder: Path) -> None:
        """Build the program in `folder`; Go fetches the library."""
        self._program = str(folder / "secured")
        shutil.copytree(_HERE / "go", folder / "go")
        fetching.run([*fetching.GO_BUILD, "-o", self._program, "."], folder / "go", each_s=_BUILD_S / 3)

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        brings = {
            "address": login.address,
            "mechanism": login.mechanism,
            "authority": str(login.authority),
            "name": login.name,
            "password": login.password,
            "token": login.token,
            "certificate": str(login.certificate or ""),
        }
        return _values(_run([self._program, topic, *values], sent=json.dumps(brings)))

    def following(self, addresses: str, topic: str) -> tuple[list[str], list[str]]:
        """See `Java`."""
        return [self._program, topic], [json.dumps({"address": addresses})]


class Kcat:
    """Debian's kcat, with librdkafka 2.0.2: older than Python's."""

    name: ClassVar[str] = "kcat"
    # Before 2.6.1 librdkafka sent a wrong SCRAM nonce, which Kafka 4 rejects, too. Without libcurl it makes only
    # unsigned tokens for OAUTHBEARER.
    mechanisms: ClassVar[Sequence[str]] = ("PLAIN", CERTIFICATE)

    def __init__(self, folder: Path) -> None:
        """Nothing is to be built."""
        assert shutil.which("kcat") is not None, "no kcat on this machine: apt-get install kcat"

    def write_and_read(self, login: Login, topic: str, values: Sequence[str]) -> list[str]:
        """See `SecuredClient`."""
        settings = {"security.protocol": login.protocol, "ssl.ca.location": str(login.authority)}
        if login.mechanism == CERTIFICATE:
            settings |= {"ssl.certificate.location": str(login.certificate), "ssl.key.location": str(login.certificate)}
        elif login.mechanism == "OAUTHBEARER":
            settings |= {
                "sasl.mechanism": login.mechanism,
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": f"principal={login.name}",
            }
        else:
            settings |= {
                "sasl.mechanism": login.mechanism,
                "sasl.username": login.name,
                "sasl.password": login.password,
            }
        options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
        command = ["kcat", "-b", login.address, *options]
        status, output, said = _run([*command, "-L", "-m", str(login.patience_s)])
        if status:
            raise Refused(output + said)
        status, output, said = _run([*command, "-P", "-t", topic], sent="".join(f"{value}\n" for value in values))
        assert status == 0, output + said
        reading = ["-X", "auto.offset.reset=earliest", "-q", "-c", str(len(values)), "-G", topic, topic]
        status, output, said = _run([*command, *reading])
        assert status == 0, output + said
        return output.splitlines()
