"""What a server has once, for all of its virtual clusters together."""

from headrace.broker.admin.acl_authorizer import AclAuthorizer
from headrace.broker.admin.quotas import Quotas
from headrace.broker.brokers.leadership import LeaderRegistry
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.group_runner import GroupMemory
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.partition.remote_log import Archives, Lake
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.budget import BESIDE_BYTES, ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.runtime.scheduler import CooperativeScheduler


class Services:
    """The parts that the brokers of all virtual clusters share."""

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
        """Make those that are not given; nothing is loaded.

        Args:
            documents: where access rules, quotas and archives are written down.
            settings: the server's settings.
            clock: the time.
            cache: budget of all cached tails; None: what the settings say.
            lake: opens archives; None: nothing is read from one.
            ownership: what is this server's; None: everything.
            leaders: the leader epochs of all logs; None: there are no other brokers.
            running: the time by which groups' members are waited for; None: as `clock`.
        """
        self.cache = cache or CacheBudget(settings.headrace_cache_bytes)
        self.reads = ReadBudget(settings.headrace_reads_bytes)
        """Of the answers under way to clients of any cluster."""
        self.beside = ReadBudget(BESIDE_BYTES)
        """Of what somebody wants who has a share of `reads`, and would wait for others who do as well."""
        self.lane = CooperativeScheduler()
        """Where long work takes turns."""
        self.group_memory = GroupMemory(settings.headrace_groups_max_bytes, settings.headrace_offsets_max_bytes)
        """What the groups of all clusters hold together."""
        self.producers = ProducerTotal(
            settings.headrace_max_producers, settings.producer_id_expiration_ms, clock, self.lane
        )
        """The idempotent producers of all logs."""
        self.decompression = Decompression()
        """Where large batches are decompressed."""
        self.archives = None if lake is None else Archives(documents, lake, self.reads)
        """Where old records of archived topics are read; None: nowhere."""
        self.ownership = ownership or Ownership(settings.node_id)
        self.leaders = leaders or LeaderRegistry()
        self.access = AclAuthorizer(documents, settings, clock, self.lane)
        """Who may do what."""
        self.quotas = Quotas(documents, settings, clock)
        """And how much of it."""
        self.running = running or clock
