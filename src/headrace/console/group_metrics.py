"""Metrics of the groups that this server coordinates."""

from collections import Counter
from collections.abc import Iterator

from headrace.console.transaction_metrics import Brokers
from headrace.metrics import families
from headrace.metrics.families import Exposition, labels


def write_groups(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the metrics of groups, without their lag."""
    groups = [(cluster, runner) for cluster, broker in brokers for runner in broker.groups.runners()]
    yield
    kinds: Counter[tuple[str, str, str]] = Counter()
    for cluster, runner in groups:
        kinds[cluster, "classic", runner.machine.state.value] += 1
        yield
    for (cluster, kind, state), count in sorted(kinds.items()):
        page.sample(families.GROUPS, count, labels(cluster=cluster, type=kind, state=state))
    for cluster, runner in groups:
        page.sample(families.GROUP_MEMBERS, runner.machine.size, labels(cluster=cluster, group=runner.name))
        yield
    for cluster, runner in groups:
        page.sample(families.GROUP_REBALANCES, runner.machine.generations, labels(cluster=cluster, group=runner.name))
        yield
