"""The lakehouse archive: copy a topic into a Delta table, every record exactly once.

A `txn` per partition, `headrace:<topic id>:<partition>`, has the next offset to archive as its version. The commit that
adds files updates it, and fails if another process committed first. Spark's checkpoint is optional.
"""

from headrace.lakehouse.status.counters import Progress, Standing, TopicProgress
from headrace.spark.archive.job import Archive, run, start
from headrace.spark.archive.settings import ArchiveSettings

__all__ = ["Archive", "ArchiveSettings", "Progress", "Standing", "TopicProgress", "run", "start"]
