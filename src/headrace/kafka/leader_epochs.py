"""The leader epoch that a client goes by, held against the partition's (KIP-320)."""

from headrace.broker.partition.partition import Partition
from headrace.kafka.errors import Code, RequestError


def check_epoch(partition: Partition, known: int) -> None:
    """Raise RequestError where a client knows another leader epoch than the present one; -1: it does not say."""
    present = partition.leader_epoch
    if known >= 0 and known != present:
        code = Code.FENCED_LEADER_EPOCH if known < present else Code.UNKNOWN_LEADER_EPOCH
        raise RequestError(code, f"leader epoch {known}, now {present}")
