"""The lakehouse archive: a topic copied into a Delta table, every record exactly once.

The table itself is the archiver's state. Per partition it holds one `txn`, `headrace:<topic id>:<partition>`, whose
version is the next offset to archive; it changes in the same commit as the files are added, and a commit fails when
somebody else's came first. Spark's checkpoint is only a convenience on top.
"""

from headrace.lakehouse.status.counters import Progress, Standing, TopicProgress
from headrace.spark.archive.job import Archive, run, start
from headrace.spark.archive.settings import ArchiveSettings

__all__ = ["Archive", "ArchiveSettings", "Progress", "Standing", "TopicProgress", "run", "start"]
