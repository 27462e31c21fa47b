"""The one place where this API's calls are asked about: whether their principal may have what they name."""

from headrace.oci.api.call import Call
from headrace.oci.api.errors import OciError
from headrace.oci.api.registry import Operation
from headrace.security.access.required_acls import Resource, Rule
from headrace.topics.errors import UnknownTopic

NOT_AUTHORIZED = "Authorization failed or requested resource not found."
"""In the words of the service: what is there and what is not are told alike."""


def admit(operation: Operation, call: Call) -> None:
    """Raises OciError 404 for a call that names something that its principal may not have, or that is not there."""
    if not call.asked_about:
        return
    try:
        granted = all(_may(operation, call, rule, resource) for rule, resource in operation.needed(call))
    except UnknownTopic:
        granted = False
    except OciError as error:
        if error.status != 404:
            raise
        granted = False
    if not granted:
        raise OciError(404, NOT_AUTHORIZED)


def _may(operation: Operation, call: Call, rule: Rule, resource: Resource) -> bool:
    if call.may(rule, resource):
        return True
    reason = f"{rule.operation.value} {rule.type.value}"
    what = f"{call.principal} may not {reason} {resource.name}"
    # The request's id is told with every line on its behalf.
    call.service.broker.access.audit.refused(str(call.principal), call.host, reason, what, operation=operation.name)
    return False
