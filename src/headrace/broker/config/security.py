"""The broker's settings of listeners, TLS and logins, under Kafka's names."""

from headrace.topics.config_keys import ConfigKey, ConfigType

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="listeners",
        type=ConfigType.LIST,
        default="",
        doc="Where the Kafka protocol is served, NAME://HOST:PORT, with commas between; instead of --kafka. Port 0 "
        "picks a free one; no host means every address.",
    ),
    ConfigKey(
        name="advertised.listeners",
        type=ConfigType.LIST,
        default="",
        doc="The addresses that clients are told to connect to, NAME://HOST:PORT, for listeners that clients do not "
        "reach by their own; instead of --advertise.",
    ),
    ConfigKey(
        name="listener.security.protocol.map",
        type=ConfigType.LIST,
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="What each listener speaks, NAME:PROTOCOL: PLAINTEXT; SSL, with TLS; SASL_PLAINTEXT, with a login; "
        "SASL_SSL, with both.",
    ),
    ConfigKey(
        name="ssl.keystore.location",
        type=ConfigType.STRING,
        default="",
        doc="PEM file with the server's private key, without a passphrase, and the chain of its certificate, for "
        "listeners with TLS. Read again when it changes.",
    ),
    ConfigKey(
        name="ssl.keystore.type",
        type=ConfigType.STRING,
        default="PEM",
        choices=("PEM",),
        doc="The form of ssl.keystore.location (JKS in Kafka).",
    ),
    ConfigKey(
        name="ssl.truststore.location",
        type=ConfigType.STRING,
        default="",
        doc="PEM file with the certificates of the authorities whose clients' certificates are taken. Read again when "
        "it changes.",
    ),
    ConfigKey(
        name="ssl.truststore.type",
        type=ConfigType.STRING,
        default="PEM",
        choices=("PEM",),
        doc="The form of ssl.truststore.location (JKS in Kafka).",
    ),
    ConfigKey(
        name="ssl.client.auth",
        type=ConfigType.STRING,
        default="none",
        choices=("none", "requested", "required"),
        doc="Whether clients need a certificate of their own at listeners with SSL, and at https; requested: they may "
        "have one. At listeners with SASL_SSL only listener.name.NAME.ssl.client.auth counts.",
    ),
    ConfigKey(
        name="ssl.principal.mapping.rules",
        type=ConfigType.STRING,
        default="DEFAULT",
        doc="The principal of a client's certificate: DEFAULT, its distinguished name, or RULE:pattern/replacement/ "
        "with L or U behind it for lower or upper case; the first that fits decides.",
    ),
    ConfigKey(
        name="sasl.enabled.mechanisms",
        type=ConfigType.LIST,
        default="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        doc="How clients may log in at listeners with SASL (GSSAPI in Kafka). OAUTHBEARER needs "
        "sasl.oauthbearer.jwks.endpoint.url and the extra headrace[oauth].",
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.url",
        type=ConfigType.STRING,
        default="",
        doc="Where the public keys are that tokens are signed with, a JSON Web Key Set: https://HOST/PATH or "
        "file:///PATH. A file is read again when it changes. With it the pages and /metrics take tokens, too "
        "(Authorization: Bearer).",
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        type=ConfigType.LONG,
        default="3600000",
        minimum=1_000,
        doc="After how long the keys of an address are asked for again; besides, a token with the id of an unknown key "
        "makes the server ask, every ten seconds at most.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.expected.audience",
        type=ConfigType.LIST,
        default="",
        doc="One of these has to be in a token's claim aud; empty: anything may. Without it tokens for other services "
        "are accepted, too.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.expected.issuer",
        type=ConfigType.STRING,
        default="",
        doc="What a token's claim iss has to be; empty: anything.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.sub.claim.name",
        type=ConfigType.STRING,
        default="sub",
        doc="The claim of a token that has the principal's name.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.clock.skew.seconds",
        type=ConfigType.INT,
        default="30",
        minimum=0,
        maximum=3_600,
        doc="How far the clock of whoever signs tokens may be from this machine's.",
    ),
    ConfigKey(
        name="connection.failed.authentication.delay.ms",
        type=ConfigType.INT,
        default="100",
        minimum=0,
        doc="How long whoever fails to log in waits for the answer, and then for the end of the connection.",
    ),
    ConfigKey(
        name="connections.max.reauth.ms",
        type=ConfigType.LONG,
        default="0",
        minimum=0,
        doc="After how long clients of listeners with SASL have to log in again; 0: never. A connection that has not "
        "is closed with its next request.",
    ),
)
"""Part of `broker.config.keys.BROKER_KEYS`."""
