"""What the OCI API's ways of asking who somebody is take, and where Kafka clients have to log in by them. Pure."""

from headrace.oci.settings import OciSettings
from headrace.security.access.exposure import is_loopback


def missing(settings: OciSettings, kafka_hosts: list[str]) -> str | None:
    """What is missing for `oci.auth` to be done, and what to do about it; None: nothing.

    Args:
        settings: the OCI API's settings.
        kafka_hosts: the addresses of listeners without SASL of their own.
    """
    if settings.auth != "verify":
        return None
    if not settings.auth_keys:
        return "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    for host in kafka_hosts:
        if not settings.auth_tokens and kafka_login_required(settings, host):
            return (
                f"Kafka clients have to log in at {host} with oci.auth=verify, and there are no tokens: "
                "add --set oci.auth.tokens=FILE, or listen on loopback with --set oci.auth.kafka=optional"
            )
    return None


def kafka_login_required(settings: OciSettings, kafka_host: str) -> bool:
    """Whether Kafka clients have to log in at a listener without SASL of its own.

    Args:
        settings: the OCI API's settings.
        kafka_host: the address that the listener is bound to.
    """
    if settings.auth_kafka == "auto":
        return settings.auth == "verify" and not is_loopback(kafka_host)
    return settings.auth_kafka == "required"
