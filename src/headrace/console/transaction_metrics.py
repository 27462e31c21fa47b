"""Metrics of transactions: those that this server coordinates, and those in the partitions that it leads."""

from collections.abc import Iterator

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.coordinator.transaction_runner import TransactionRunner
from headrace.broker.partition.leader import LeaderPartition
from headrace.metrics import families
from headrace.metrics.families import Exposition, labels
from headrace.topics.transactions import Transactions

LATE_MS = 300_000
"""Milliseconds above `transaction.max.timeout.ms` from which a transaction is late, as in Kafka."""
Brokers = list[tuple[str, Broker]]
"""The label `cluster`, empty for the default virtual cluster, and the broker."""


class _Coordinated(msgspec.Struct):
    """The open transactions of one virtual cluster."""

    count: int = 0
    overdue: int = 0
    oldest_ms: int = 0

    def add(self, runner: TransactionRunner, now_ms: int) -> None:
        """Count a transactional id."""
        stored = runner.machine.current
        if stored.state.open:
            age_ms = max(0, now_ms - stored.started_ms) if stored.started_ms >= 0 else 0
            self.count += 1
            self.overdue += age_ms > stored.timeout_ms
            self.oldest_ms = max(self.oldest_ms, age_ms)


class _Logs(msgspec.Struct):
    """The transactions of the logs of one topic."""

    used: bool = False
    lag: int = 0
    aborted: int = 0
    late: int = 0

    def add(self, log: LeaderPartition, transactions: Transactions, late_before_ms: int) -> None:
        """Count a partition."""
        self.used = True
        self.lag = max(self.lag, log.log_end - transactions.stable_end(log.log_end))
        self.aborted += len(transactions.aborted)
        oldest = next(iter(transactions.open.values()), None)
        self.late += oldest is not None and oldest.since_ms < late_before_ms


def write_transactions(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the metrics of transactions. Topics without transactions have no series."""
    yield from _write_coordinated(page, brokers)
    yield from _write_logs(page, brokers)


def _write_coordinated(page: Exposition, brokers: Brokers) -> Iterator[None]:
    found: list[tuple[str, _Coordinated]] = []
    for cluster, broker in brokers:
        figures = _Coordinated()
        found.append((labels(cluster=cluster), figures))
        for runner in broker.transactions.coordinator.runners():
            figures.add(runner, broker.clock.now_ms())
            yield
    for text, figures in found:
        page.sample(families.TRANSACTIONS, figures.count, text)
    for text, figures in found:
        page.sample(families.TRANSACTIONS_OVERDUE, figures.overdue, text)
    for text, figures in found:
        page.sample(families.TRANSACTION_OLDEST, figures.oldest_ms / 1000, text)
    for cluster, broker in brokers:
        verified = broker.transactions.verified
        if verified.ticks:
            page.histogram(families.TRANSACTION_VERIFICATION, verified, labels(cluster=cluster))


def _write_logs(page: Exposition, brokers: Brokers) -> Iterator[None]:
    late = aborted = 0
    lags: list[tuple[str, int]] = []
    for cluster, broker in brokers:
        late_before_ms = broker.clock.now_ms() - broker.settings.transactions.max_timeout_ms - LATE_MS
        for live in broker.topics:
            found = _Logs()
            for partition in live.partitions:
                log = partition.log
                if log is not None and log.transactions is not None and log.transactions.used and log.is_leader:
                    found.add(log, log.transactions, late_before_ms)
            yield
            late += found.late
            aborted += found.aborted
            if found.used:
                lags.append((labels(cluster=cluster, topic=live.topic.name), found.lag))
    page.sample(families.LATE_PARTITIONS, late)
    page.sample(families.ABORTED, aborted)
    for text, lag in lags:
        page.sample(families.STABLE_LAG, lag, text)
        yield
