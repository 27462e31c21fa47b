"""The one place where this API's calls are asked about: whether their principal may have what they name."""

from headrace.oci.call import Call
from headrace.oci.errors import OciError
from headrace.oci.registry import Operation
from headrace.topics.errors import UnknownTopic

NOT_AUTHORIZED = "Authorization failed or requested resource not found."
"""In the words of the service: what is there and what is not are told alike."""


def admit(operation: Operation, call: Call) -> None:
    """Raises OciError 404 for a call that names something that its principal may not have, or that is not there."""
    if not call.asked_about:
        return
    try:
        granted = all(call.may(rule, resource) for rule, resource in operation.needed(call))
    except UnknownTopic:
        granted = False
    except OciError as error:
        if error.status != 404:
            raise
        granted = False
    if not granted:
        raise OciError(404, NOT_AUTHORIZED)
