"""Who can reach the listeners, and whether that goes with how they check who asks: one rule for both. Pure."""

import ipaddress

from headrace.oci.settings import OciSettings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a socket that is bound to this address (an address, not a name)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def refusal(settings: OciSettings, http_host: str, kafka_host: str, *, insecure: bool) -> str | None:
    """Why the listeners are not to be opened like this, and what to do about it; None: they may be.

    Args:
        settings: the OCI API's settings.
        http_host: the address that the HTTP listener is bound to.
        kafka_host: the address that the Kafka listener is bound to.
        insecure: `headrace.insecure`: that everybody gets in is meant.
    """
    login_required = kafka_login_required(settings, kafka_host)
    if settings.auth == "verify":
        if not settings.auth_keys:
            return "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
        if not settings.auth_tokens and login_required:
            return (
                f"Kafka clients have to log in at {kafka_host} with oci.auth=verify, and there are no tokens: "
                "add --set oci.auth.tokens=FILE, or listen on loopback with --set oci.auth.kafka=optional"
            )
    if insecure:
        return None
    if not is_loopback(http_host) and settings.auth != "verify":
        return _open_to_others(
            "http",
            http_host,
            f"oci.auth={settings.auth} lets everybody in",
            "verify signatures with --set oci.auth=verify --set oci.auth.keys=DIR",
        )
    if not is_loopback(kafka_host) and not (settings.auth == "verify" and login_required):
        return _open_to_others(
            "kafka",
            kafka_host,
            "its clients need no password",
            "require one with --set oci.auth=verify --set oci.auth.keys=DIR --set oci.auth.tokens=FILE",
        )
    return None


def _open_to_others(option: str, host: str, why: str, remedy: str) -> str:
    return (
        f"--{option} {host} is open to other machines, and {why}: listen on 127.0.0.1, or {remedy}, "
        "or say that this is meant with --set headrace.insecure=true"
    )


def kafka_login_required(settings: OciSettings, kafka_host: str) -> bool:
    """Whether Kafka clients have to log in.

    Args:
        settings: the OCI API's settings.
        kafka_host: the address that the Kafka listener is bound to.
    """
    if settings.auth_kafka == "auto":
        return settings.auth == "verify" and not is_loopback(kafka_host)
    return settings.auth_kafka == "required"
