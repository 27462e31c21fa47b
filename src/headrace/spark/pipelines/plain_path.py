"""A second name for projects whose path Spark's pipelines cannot take.

Spark percent-encodes the path of a pipeline's checkpoints once, and takes the result for a path: with a space in it,
the checkpoints lie in another folder than the one Spark looks for them in. Derby, which holds the catalog, refuses
others. So Spark is given a symbolic link whose path has none of these.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
from pathlib import Path
from typing import Final

from headrace.client.errors import SparkError
from headrace.lakehouse.paths import is_plain
from headrace.text import environment

_LINKS: Final = "pipelines"


class NoPlainPath(SparkError):
    """A project cannot be given a path that Spark takes."""


def of(folder: Path) -> Path:
    """Return the path under which Spark finds a project: its own, or the link's. Nothing is made.

    Raises:
        NoPlainPath: the folder for links has special characters too.
    """
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


def catalog(folder: Path) -> Path:
    """Return where Derby keeps a project's catalog: in the project, or next to the link to it.

    Derby follows the link, and does not open a database again whose path has a colon.
    """
    root = of(folder)
    if ":" in str(folder.absolute()):
        return root.with_name(f"{root.name}-catalog")
    return root / ".pipeline" / "catalog"


def forget(folder: Path) -> None:
    """Remove what an earlier project of the same path has left outside of it."""
    outside = catalog(folder)
    if outside.parent.name == _LINKS:
        shutil.rmtree(outside, ignore_errors=True)


def make(folder: Path) -> None:
    """Make the link, where the project needs one.

    Raises:
        NoPlainPath: it cannot be made, or something else is in its place.
    """
    folder = folder.absolute()
    link = of(folder)
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
