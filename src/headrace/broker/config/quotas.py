"""The broker's settings of quotas, under Kafka's names."""

from headrace.topics.config_keys import ConfigKey, ConfigType

UNLIMITED_RATE = 2**31 - 1
"""`max.connection.creation.rate` where there is none."""
QUOTA_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="max.connection.creation.rate",
        type=ConfigType.INT,
        default=str(UNLIMITED_RATE),
        minimum=1,
        doc="How many connections a second the Kafka listeners take up together, measured over the windows of quotas. "
        "Those beyond wait for their turn, or are closed where that would take more than ten seconds.",
    ),
    ConfigKey(
        name="quota.window.num",
        type=ConfigType.INT,
        default="11",
        minimum=2,
        doc="Windows of time over which bytes, request time and connections are measured where quotas limit them.",
    ),
    ConfigKey(
        name="quota.window.size.seconds", type=ConfigType.INT, default="1", minimum=1, doc="How long one of these is."
    ),
    ConfigKey(
        name="controller.quota.window.num",
        type=ConfigType.INT,
        default="11",
        minimum=2,
        doc="Windows of time whose controller_mutation_rate may be used up at once.",
    ),
    ConfigKey(
        name="controller.quota.window.size.seconds",
        type=ConfigType.INT,
        default="1",
        minimum=1,
        doc="How long one of these is.",
    ),
)
"""Part of `broker.config.keys.BROKER_KEYS`."""
