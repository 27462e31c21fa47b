"""Spark's settings for a project: those that it has, over those that every project needs."""

from pathlib import Path
from typing import Final

from headrace.lakehouse.paths import file_url
from headrace.spark.pipelines import plain_path

STATE: Final = ".pipeline"
"""Checkpoints, catalog and event logs; delete it, and `tables`, to begin anew."""
DEFAULTS: Final = "conf/spark-defaults.conf"
EVENTS: Final = "spark.eventLog.dir"


def settings(folder: Path) -> dict[str, str]:
    """What Spark is started with."""
    return {name: value for _, group in _needed(folder) for name, value in group.items()} | own(folder)


def own(folder: Path) -> dict[str, str]:
    """What the project's settings file says: a name, blanks, a value."""
    path = folder / DEFAULTS
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def storage(folder: Path) -> str:
    """Return the URL under which Spark keeps a project's checkpoints."""
    return file_url(plain_path.of(folder) / STATE / "storage")


def written_out(folder: Path) -> str:
    """What every project needs as a settings file, by which Spark's own commands run it too."""
    lines = []
    for why, group in _needed(folder):
        lines += [f"# {why}", *(f"{name}    {value}" for name, value in group.items())]
    return "\n".join(lines) + "\n"


def _needed(folder: Path) -> list[tuple[str, dict[str, str]]]:
    root = plain_path.of(folder)
    state = root / STATE
    return [
        (
            "A catalog that lasts: in Spark's default one, in memory, a second run fails because its tables are there.",
            {
                "spark.sql.catalogImplementation": "hive",
                "spark.sql.warehouse.dir": file_url(root / "tables"),
                "spark.hadoop.javax.jdo.option.ConnectionURL": (
                    f"jdbc:derby:;databaseName={plain_path.catalog(folder)};create=true"
                ),
            },
        ),
        (
            "What a run did is read from here.",
            {
                "spark.eventLog.enabled": "true",
                EVENTS: file_url(state / "events"),
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
            },
        ),
        (
            "Nothing listens on other addresses than this machine's own.",
            {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.ui.enabled": "false",
            },
        ),
        (
            "For one machine; more of both where there are more cores.",
            {
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.pipelines.execution.maxConcurrentFlows": "2",
            },
        ),
        ("As in the topics.", {"spark.sql.session.timeZone": "UTC"}),
    ]
