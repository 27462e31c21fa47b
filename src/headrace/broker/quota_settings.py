"""The broker's settings of quotas, under Kafka's names."""

from headrace.topics.values import ConfigKey, ConfigType

QUOTA_KEYS: tuple[ConfigKey, ...] = (
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
"""Part of `broker.settings.BROKER_KEYS`."""
