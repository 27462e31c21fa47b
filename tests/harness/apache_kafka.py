"""One node of Apache Kafka on loopback, without and with TLS and logins; its jars come by Maven, once per checkout."""

import contextlib
import datetime as dt
import ipaddress
import shutil
import socket
import subprocess
import time
import uuid
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.harness import fetching
from tests.harness.ports import free_ports

USER, PASSWORD = "alice", "the-secret"
_ROOT = Path(__file__).parents[2]
_POM = _ROOT / "tests" / "spark" / "apache_kafka" / "pom.xml"
_PROGRAMS = _ROOT / "tests" / "clients" / "programs" / "pom.xml"
_FLINK = _ROOT / "tests" / "clients" / "flink" / "pom.xml"
_CONNECTOR = _ROOT / "tests" / "spark" / "format_kafka" / "pom.xml"
_FETCH_S, _FORMAT_S, _START_S = 600, 240, 240
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={home}/server.pem
log.dirs={home}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_LOG4J = """status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class Node:
    """The process of a broker, on ports and with data that stay."""

    def __init__(self, command: Sequence[str], ports: Sequence[int], log: Path) -> None:
        self._command, self._ports, self._log = command, ports, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens. Raises RuntimeError with the end of its log."""
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(self._command, stdout=sink, stderr=sink)
        for port in self._ports:
            _wait_for(port, self._process, self._log)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ApacheKafka(NamedTuple):
    """A running broker."""

    plain: str
    """HOST:PORT without login."""
    secure: str
    """HOST:PORT with TLS, PLAIN and SCRAM-SHA-512, for `USER` with `PASSWORD`."""
    certificate: Path
    """PEM of the certificate that its clients trust."""
    node: Node | None = None
    """None: it was not started here."""

    @property
    def pid(self) -> int:
        """Of its process; 0: it was not started here."""
        return 0 if self.node is None else self.node.pid


def jars() -> str:
    """The class path; Maven fetches what is missing. Raises RuntimeError with Maven's words."""
    return _fetched(_POM, _ROOT / "build" / "apache-kafka")


def program_jars() -> str:
    """The class path of Kafka Streams, Connect with its file connectors, and MirrorMaker 2. Raises as `jars`."""
    return _fetched(_PROGRAMS, _ROOT / "build" / "apache-kafka-programs")


def flink_jars() -> str:
    """The class path of Flink, its connector for Kafka, and its own version of Kafka's clients. Raises as `jars`."""
    return _fetched(_FLINK, _ROOT / "build" / "flink")


def connector_jars() -> str:
    """What gives Spark `format("kafka")`, for `spark.jars`: paths with commas between. Raises as `jars`."""
    folder = Path(_fetched(_CONNECTOR, _ROOT / "build" / "spark-kafka")).parent
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))


def _fetched(pom: Path, folder: Path) -> str:
    complete = folder / f"complete-{zlib.crc32(pom.read_bytes()):08x}"
    if not complete.exists():
        command = ["mvn", "--batch-mode", "--quiet", "-f", str(pom), "dependency:copy-dependencies"]
        fetching.run([*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"], each_s=_FETCH_S)
        complete.touch()
    return f"{folder}/*"


def java_command(*words: str, classes: str = "", heap_mib: int = 256) -> list[str]:
    """A command for a JVM that starts fast; `classes` is the class path (default: `jars`)."""
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{heap_mib}m"]
    return ["java", *options, "-cp", classes or jars(), *words]


def tool(main: str, *words: str, limit_s: float = 240) -> str:
    """What one of Kafka's command line tools prints. Raises AssertionError with all its words when it fails."""
    command = java_command(f"org.apache.kafka.tools.{main}", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def apache_kafka(
    home: Path, settings: Sequence[str] = (), options: Sequence[str] = ("-Xmx512m",)
) -> Iterator[ApacheKafka]:
    """A broker with its data in `home`, with further settings (`KEY=VALUE`) and these options of its JVM.

    Raises RuntimeError with the end of its log when it does not start.
    """
    java = shutil.which("java")
    if java is None or shutil.which("mvn") is None:
        raise RuntimeError("java or mvn is not installed")
    plain, secure, controller = free_ports(3)
    (home / "log4j2.properties").write_text(_LOG4J)
    _make_certificate(home)
    config = home / "server.properties"
    given = _PROPERTIES.format(
        plain=plain, secure=secure, controller=controller, home=home, user=USER, password=PASSWORD
    )
    config.write_text(given + "".join(f"{each}\n" for each in settings))
    log = home / "server.log"
    run = [java, f"-Dlog4j2.configurationFile={home}/log4j2.properties", *options, "-cp", jars()]
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    scram = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
    with log.open("ab") as sink:
        # One value with its option, because it may begin with a hyphen.
        of_cluster = ("--standalone", f"--cluster-id={cluster}")
        formatting = [*run, "kafka.tools.StorageTool", "format", *of_cluster, "-c", str(config)]
        done = subprocess.run(
            [*formatting, "--add-scram", scram], stdout=sink, stderr=sink, timeout=_FORMAT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(log.read_text()[-4_000:])
    node = Node([*run, "kafka.Kafka", str(config)], (plain, secure), log)
    try:
        node.start()
        yield ApacheKafka(f"127.0.0.1:{plain}", f"127.0.0.1:{secure}", home / "ca.pem", node)
    finally:
        node.kill()


def _wait_for(port: int, broker: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if broker.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(log.read_text()[-4_000:])
        time.sleep(0.05)


def _make_certificate(home: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself: `ca.pem` for clients, `server.pem` with the key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    (home / "ca.pem").write_bytes(pem)
    (home / "server.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
