"""Services that all virtual clusters of a server share."""

from collections.abc import Callable

from headrace.broker.admin.acl_authorizer import AclAuthorizer
from headrace.broker.admin.group_configs import GroupConfigs
from headrace.broker.admin.quotas import Quotas
from headrace.broker.brokers.leadership import LeaderRegistry
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.group_runner import GroupMemory
from headrace.broker.coordinator.remote_transactions import TransactionPeers
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.partition.remote_log import Archives, Lake
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.budget import LARGE_READS_BYTES, ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.topics.live import AppendBatch
from headrace.broker.topics.record_checker import RecordChecker


class Services:
    """Services of one server."""

    def __init__(
        self,
        documents: DocumentStorage,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cache: CacheBudget | None = None,
        lake: Lake | None = None,
        ownership: Ownership | None = None,
        leaders: LeaderRegistry | None = None,
        running: Clock | None = None,
    ) -> None:
        """Without `lake`, archives do not work. Without `ownership`, this server owns everything.

        `running` is the clock for members' timeouts.
        """
        self.cache = cache or CacheBudget(settings.headrace_cache_bytes)
        self.reads = ReadBudget(settings.headrace_reads_bytes)
        """Budget of responses in progress, of all clusters."""
        self.large_reads = ReadBudget(LARGE_READS_BYTES)
        """Additional budget for holders of a share of `reads`, which would otherwise wait for each other."""
        self.lane = CooperativeScheduler()
        """Scheduler of long work."""
        self.group_memory = GroupMemory(settings.headrace_groups_max_bytes, settings.headrace_offsets_max_bytes)
        """Memory of the groups of all clusters."""
        self.producers = ProducerTotal(
            settings.headrace_max_producers, settings.producer_id_expiration_ms, clock, self.lane
        )
        """Idempotent producers of all logs."""
        self.decompression = Decompression()
        """Decompression of large batches."""
        self.record_checker = RecordChecker(self.decompression)
        """Checks of records, for topics whose configuration asks for them."""
        self.archives = None if lake is None else Archives(documents, lake, self.reads)
        """Archives of old records, if any."""
        self.ownership = ownership or Ownership(settings.node_id)
        self.leaders = leaders or LeaderRegistry()
        self.access = AclAuthorizer(documents, settings, clock, self.lane)
        """Authorization."""
        self.quotas = Quotas(documents, settings, clock)
        """Quotas."""
        self.group_configs = GroupConfigs(documents)
        """Configurations of groups."""
        self.running = running or clock
        self.transaction_peers: TransactionPeers | None = None
        """The other brokers, for transactions. None: a single server, or one that starts."""
        self.append_batch: AppendBatch | None = None
        """Appends at any leader. None: this server leads everything."""
        self.refusal: Callable[[], str] = str
        """Returns why the server accepts no records; empty: it does."""
