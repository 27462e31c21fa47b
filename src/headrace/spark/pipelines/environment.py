"""Build Spark's settings for a project, and a path that Spark accepts.

Spark percent-encodes the path of a pipeline's checkpoints once, which is wrong with a space. Derby, which holds the
catalog, rejects other characters. For such paths Spark gets a plain symbolic link.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
from pathlib import Path
from typing import Final

from headrace.client.errors import SparkError
from headrace.lakehouse.paths import file_url, is_plain
from headrace.text import environment

STATE: Final = ".pipeline"
"""Folder of checkpoints, catalog and event logs. Delete it and `tables` to start over."""
DEFAULTS: Final = "conf/spark-defaults.conf"
EVENTS: Final = "spark.eventLog.dir"


def settings(folder: Path) -> dict[str, str]:
    """Return Spark's settings."""
    return {name: value for _, group in _needed(folder) for name, value in group.items()} | own(folder)


def own(folder: Path) -> dict[str, str]:
    """Return the project's settings file: a name, blanks, a value."""
    path = folder / DEFAULTS
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def storage(folder: Path) -> str:
    """Return the checkpoints' URL for Spark."""
    return file_url(plain_path(folder) / STATE / "storage")


def written_out(folder: Path) -> str:
    """Return the default settings as a file for Spark's own commands."""
    lines = []
    for why, group in _needed(folder):
        lines += [f"# {why}", *(f"{name}    {value}" for name, value in group.items())]
    return "\n".join(lines) + "\n"


def _needed(folder: Path) -> list[tuple[str, dict[str, str]]]:
    root = plain_path(folder)
    state = root / STATE
    return [
        (
            "A catalog that lasts: in Spark's default one, in memory, a second run fails because its tables are there.",
            {
                "spark.sql.catalogImplementation": "hive",
                "spark.sql.warehouse.dir": file_url(root / "tables"),
                "spark.hadoop.javax.jdo.option.ConnectionURL": (
                    f"jdbc:derby:;databaseName={catalog_path(folder)};create=true"
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


_LINKS: Final = "pipelines"


class NoPlainPath(SparkError):
    """Spark accepts no path to the project."""


def plain_path(folder: Path) -> Path:
    """Return the path for Spark, the project's own or the link's. Raise NoPlainPath; nothing is created."""
    folder = folder.absolute()
    if is_plain(folder):
        return folder
    links = environment.state_folder() / _LINKS
    if not is_plain(links):
        raise NoPlainPath(
            f"Spark's pipelines take paths with letters, digits and - . _ ~ only. {folder} has others, and so has "
            f"{links}, where a link to it would lie: set XDG_STATE_HOME to a folder without them"
        )
    return links / hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]


def catalog_path(folder: Path) -> Path:
    """Return the location of Derby's catalog: in the project, or next to the link.

    Derby follows the link, and cannot reopen a database whose path has a colon.
    """
    root = plain_path(folder)
    if ":" in str(folder.absolute()):
        return root.with_name(f"{root.name}-catalog")
    return root / ".pipeline" / "catalog"


def forget_link(folder: Path) -> None:
    """Remove what an earlier project of the same path has left."""
    outside = catalog_path(folder)
    if outside.parent.name == _LINKS:
        shutil.rmtree(outside, ignore_errors=True)


def make_link(folder: Path) -> None:
    """Create the link if the project needs one. Raise NoPlainPath, also if another file has its name."""
    folder = folder.absolute()
    link = plain_path(folder)
    if link == folder:
        return
    try:
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(folder)
        if not link.is_symlink():
            raise NoPlainPath(
                f"{link} should be a link to {folder}, but Spark has made a folder there: "
                f"move it away with `mv {shlex.quote(str(link))} {shlex.quote(f'{link}-old')}`"
            )
        if link.readlink() != folder:
            raise NoPlainPath(f"{link} should be a link to {folder}, but leads to {link.readlink()}: remove it")
    except OSError as error:
        raise NoPlainPath(f"{link}, a link to {folder} for Spark, cannot be made: {error.strerror}") from error
