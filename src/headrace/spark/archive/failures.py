"""What broke a query of the archive, found in what Spark says of it."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.client import errors
from headrace.client.errors import SparkError

_STAGE_ERROR: Final = re.compile(r"headrace\.(?:client|lakehouse|spark)(?:\.\w+)*\.(\w+): (.*)")


def from_spark(error: PySparkException | Py4JError) -> SparkError:
    """The error of ours inside Spark's, which comes as text with a traceback; or Spark's own first line."""
    text = str(error)
    for name, message in reversed(_STAGE_ERROR.findall(text)):
        kind = getattr(errors, name, SparkError)
        return (kind if isinstance(kind, type) and issubclass(kind, SparkError) else SparkError)(message.strip())
    return SparkError(text.strip().splitlines()[0] if text.strip() else type(error).__name__)
