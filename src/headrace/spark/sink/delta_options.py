"""Parse the options of writing `format("headrace.delta")`."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from headrace.client.errors import OptionError, TableError
from headrace.lakehouse.write.location import Place
from headrace.spark.source.options import count, flag, without_table_properties

STORAGE: Final = "storage."
_NAMES: Final = ("path", "partitionBy", "mergeSchema", "targetFileSize", "txnAppId", "txnVersion", "checkpointLocation")
_FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True, kw_only=True)
class DeltaOptions:
    """A table's location and how to write it. Sent to the executors."""

    place: Place
    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    file_bytes: int = _FILE_BYTES
    application: str | None = None
    """With `number`: identifies a batch outside of a stream, so that it is written once (Delta's txnAppId)."""
    number: int | None = None


def parse(options: Mapping[str, str]) -> DeltaOptions:
    """Return the options of one write. Raise OptionError."""
    path = options.get("path")
    options = {**without_table_properties(options), **({"path": path} if path is not None else {})}
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _NAMES}
    for name in given:
        if name not in known and name != "queryname" and not name.startswith(STORAGE):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]!r}? " if near else ""
            listed = ", ".join(_NAMES)
            raise OptionError(
                f"unknown option {name!r} of format 'headrace.delta'; {hint}it takes: {listed}, storage.*"
            )
    if not path:
        raise OptionError("option 'path' must name the table: a directory, or a URL such as s3://bucket/table")
    application, number = given.get("txnappid"), given.get("txnversion")
    if (application is None) != (number is None):
        raise OptionError("options 'txnAppId' and 'txnVersion' go together: give both or neither")
    if number is not None and not (number.isascii() and number.isdigit()):
        raise OptionError(f"option 'txnVersion' must be a whole number, not {number!r}")
    return DeltaOptions(
        place=_place(
            path, {name.removeprefix(STORAGE): value for name, value in given.items() if name.startswith(STORAGE)}
        ),
        partition_by=tuple(name.strip() for name in given.get("partitionby", "").split(",") if name.strip()),
        merge_schema=flag("mergeSchema", given, default=False),
        file_bytes=count("targetFileSize", given) or _FILE_BYTES,
        application=application,
        number=None if number is None else int(number),
    )


def _place(text: str, storage: Mapping[str, str]) -> Place:
    try:
        return Place.of(text, storage, schemes=())
    except TableError as error:
        raise OptionError(f"option 'path': {error}") from None
