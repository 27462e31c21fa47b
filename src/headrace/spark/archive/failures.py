"""What broke a query of the archive, found in what Spark says of it."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.client import errors
from headrace.client.errors import SparkError, TaskFailed

_CAUSE: Final = re.compile(r"Caused by: (.+)")
_PYTHON: Final = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|NotImplemented|Invalid)(?:: .*)?$")
"""How a traceback of Python ends."""
_PASSING: Final = re.compile(r"(?:\w+\.)*(?:OSError|MemoryError|Py4J\w+|\w*(?:Timeout|Connection|Pipe)\w*)\b")
"""What may be otherwise the next time."""
_STAGE_ERROR: Final = re.compile(r"headrace\.(?:client|lakehouse|spark)(?:\.\w+)*\.(\w+): (.*)")


def from_spark(error: PySparkException | Py4JError) -> SparkError:
    """The error of ours inside Spark's, which comes as text with a traceback; or Spark's own first line."""
    text = str(error)
    for name, message in reversed(_STAGE_ERROR.findall(text)):
        kind = getattr(errors, name, SparkError)
        return (kind if isinstance(kind, type) and issubclass(kind, SparkError) else SparkError)(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return SparkError(type(error).__name__)
    # What a Python worker, or Java below Spark, says at the end is the cause; Spark's own first line names the query.
    causes = [found[1] for line in lines if (found := _CAUSE.match(line)) is not None]
    python = [line for line in lines if _PYTHON.match(line)]
    cause = python[-1] if python else causes[-1] if causes else ""
    permanent = bool(python) and _PASSING.match(cause) is None
    return (TaskFailed if permanent else SparkError)(f"{lines[0]}: {cause}" if cause not in lines[0] else lines[0])
