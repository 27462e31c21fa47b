"""Who can reach the doors, and whether that goes with how they check who asks. Pure."""

import ipaddress

from headrace.oci.settings import OciSettings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a socket that is bound to this address (an address, not a name)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def refusal(settings: OciSettings, http_host: str, kafka_host: str) -> str | None:
    """Why the doors are not to be opened like this, and what to do about it; None: they may be.

    Args:
        settings: the door's settings.
        http_host: the address that the HTTP doors are bound to.
        kafka_host: the address that the Kafka door is bound to.
    """
    if settings.auth == "verify":
        if not settings.auth_keys:
            return "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
        if not settings.auth_tokens and kafka_login_required(settings, kafka_host):
            return (
                f"Kafka clients have to log in at {kafka_host} with oci.auth=verify, and there are no tokens: "
                "add --set oci.auth.tokens=FILE, or --set oci.auth.kafka=optional"
            )
        return None
    if is_loopback(http_host) or settings.auth_insecure:
        return None
    return (
        f"--http {http_host} is open to other machines, and oci.auth={settings.auth} lets everybody in: "
        "listen on 127.0.0.1, or verify signatures with --set oci.auth=verify --set oci.auth.keys=DIR, "
        "or say that this is meant with --set oci.auth.insecure=true"
    )


def kafka_login_required(settings: OciSettings, kafka_host: str) -> bool:
    """Whether Kafka clients have to log in.

    Args:
        settings: the door's settings.
        kafka_host: the address that the Kafka door is bound to.
    """
    if settings.auth_kafka == "auto":
        return settings.auth == "verify" and not is_loopback(kafka_host)
    return settings.auth_kafka == "required"
