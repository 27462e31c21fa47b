"""Run a project with Spark's own `spark-pipelines`.

Can also start a Spark Connect server on a free loopback port, for clients with its token.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyspark.sql import SparkSession

from headrace.client.errors import SparkError
from headrace.lakehouse.paths import file_url, is_plain, local_path
from headrace.spark import session
from headrace.spark.pipelines import check, environment
from headrace.spark.pipelines.environment import STATE
from headrace.spark.pipelines.project import SPEC
from headrace.text import extras

_SPECS: Final = (SPEC, "spark-pipeline.yaml")
_STOP_S: Final = 30.0


class NoProject(SparkError):
    """The folder has no pipeline spec, or the project cannot run."""


@dataclass(frozen=True)
class Ended:
    """Result of a run."""

    status: int
    log: Path | None
    """Spark's event log, or None if it is not local."""


def prepare(folder: Path) -> None:
    """Check that the project can run. Raise NoProject, with a line for each problem."""
    _spec(folder)
    missing = extras.missing(extras.MODULES["pipelines"])
    if missing:
        raise NoProject(extras.needs("a pipeline", missing[0], "pipelines"))
    environment.make_link(folder)
    found = [*_moved(folder), *check.problems(folder, environment.own(folder))]
    if found:
        raise NoProject("\n".join(found))


def start(
    folder: Path, arguments: Sequence[str], *, output: Callable[[str], None], dry: bool = False, verbose: bool = False
) -> Ended:
    """Run the project and wait for it.

    Spark's own command always uses port 15002. This starts Spark Connect on a free loopback port, with a token.

    `arguments` are passed on unless `dry`, which only validates. `output` gets each line of Spark's output. `verbose`
    logs the JVM's warnings.
    """
    conf = environment.settings(folder) | connect_settings()
    events = _local(conf[environment.EVENTS])
    if events is not None:
        events.mkdir(parents=True, exist_ok=True)
    with chdir(folder):  # for relative paths and Derby's log
        master, log_level = conf.pop("spark.master", "local[*]"), "warn" if verbose else "off"
        with _silent_java():
            spark = session.create(folder.name, master=master, conf=conf, log_level=log_level)
    try:
        variables = {**os.environ, **connect_variables(spark)}
        chosen = ["dry-run"] if dry else ["run", *arguments]
        # In its own session, so nothing else ends it when this process is killed.
        run = [sys.executable, "-m", "headrace.server.child", str(os.getpid()), "pyspark.pipelines.cli"]
        command = [*run, *chosen, "--spec", _spec(folder)]
        status = _wait(command, folder, variables, output)
        application = spark.sparkContext.applicationId
    finally:
        spark.stop()  # also closes the event log
    return Ended(status, None if events is None else events / application)


@contextlib.contextmanager
def _silent_java() -> Iterator[None]:
    """Redirect child processes' output to standard error: the JVM prints warnings to it."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _spec(folder: Path) -> str:
    for name in _SPECS:
        if (folder / name).is_file():
            return name
    raise NoProject(f"{folder} has no {SPEC}: `headrace pipeline init` writes one")


def _moved(folder: Path) -> list[str]:
    right = file_url(folder / STATE / "storage")
    spec = (folder / _spec(folder)).read_text("utf-8", "replace")
    if is_plain(folder) or f"storage: {right}" not in spec.splitlines():
        return []
    # As Spark uses them: the URL's path, and for checkpoints that path encoded again.
    tables = Path(file_url(folder / "tables").removeprefix("file://"))
    checkpoints = Path(quote(right.removeprefix("file://")))
    told = [f"tables in {tables}"] if tables.is_dir() else []
    told += [f"checkpoints in {checkpoints}"] if checkpoints.is_dir() else []
    kept = f" It has {' and '.join(told)}, which stay as they are." if told else ""
    return [
        (
            f"{folder / _spec(folder)}: an earlier version wrote this project for other folders, because its path has "
            f"special characters.{kept} Create a new project with `headrace pipeline init`, and copy your "
            "transformations into it. It reads the records that are still in the topics"
        )
    ]


def _local(url: str) -> Path | None:
    try:
        return local_path(url)
    except ValueError:
        return None


def _wait(command: list[str], folder: Path, variables: dict[str, str], output: Callable[[str], None]) -> int:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output(line.rstrip("\n"))
        return process.wait()
    finally:
        if process.poll() is None:
            _stop(process)


def _stop(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


CONNECT_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Environment variable for the token of Spark's clients."""


def connect_settings() -> dict[str, str]:
    """Return the settings for a session's start."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": secrets.token_urlsafe(24),
    }


def connect_variables(spark: SparkSession) -> dict[str, str]:
    """Return the environment for Spark's clients."""
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    token = spark.sparkContext.getConf().get("spark.connect.authenticate.token", "")
    return {"SPARK_API_MODE": "connect", "SPARK_REMOTE": f"sc://localhost:{port}/", CONNECT_TOKEN: token or ""}
