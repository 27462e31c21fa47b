"""The broker's settings of access rules, under Kafka's names."""

from headrace.topics.config_keys import ConfigKey, ConfigType, InvalidSetting

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The value of `authorizer.class.name` by which access rules hold."""

ACCESS_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="authorizer.class.name",
        type=ConfigType.STRING,
        default="",
        choices=("", STANDARD_AUTHORIZER),
        doc="Who may do what: empty, and everybody who reaches a listener may do everything; or Kafka's name of access "
        "rules (ACLs), which then hold for every API.",
    ),
    ConfigKey(
        name="super.users",
        type=ConfigType.STRING,
        default="",
        doc="Principals who may do everything whatever the access rules say, such as User:admin;User:backup.",
    ),
    ConfigKey(
        name="allow.everyone.if.no.acl.found",
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether everybody may do what they like to a resource that no access rule is about.",
    ),
)


def principals(text: str) -> frozenset[str]:
    """The principals of a list with semicolons between. Raises InvalidSetting for what is none."""
    found = frozenset(each.strip() for each in text.split(";") if each.strip())
    for each in found:
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise InvalidSetting(f"super.users: expected principals such as User:admin;User:backup, found {each!r}")
    return found
