"""What can go wrong on the Spark side. Each message is one line that says what to change."""


class SparkError(Exception):
    """Base of every error born in this room."""


class OptionError(SparkError):
    """An option that does not exist, has no such value, or contradicts another one."""


class UnknownTopic(SparkError):
    """No topic of that name in this storage."""


class TopicReplaced(SparkError):
    """The topic was deleted and created again: offsets of the old one mean nothing in the new one."""


class DataLoss(SparkError):
    """Records that the query must read are no longer in the log."""


class StorageUnavailable(SparkError):
    """Redis cannot be reached, or what it holds is not Headrace's."""


class GroupCommitFailed(SparkError):
    """The Kafka door could not be reached or refused the positions."""


class CorruptLog(SparkError):
    """A stored record batch that cannot be read."""
