"""Names of the API's operations, for what must know one before any is registered. Pure; a test holds them to those."""

_RESOURCES = ("Stream", "StreamPool", "ConnectHarness")

OPERATION_NAMES = frozenset(
    {
        *("PutMessages", "GetMessages", "CreateCursor", "CreateGroupCursor"),
        *("ConsumerCommit", "ConsumerHeartbeat", "GetGroup", "UpdateGroup"),
        *(f"{verb}{resource}" for verb in ("Create", "Get", "Update", "Delete") for resource in _RESOURCES),
        *(f"Change{resource}Compartment" for resource in _RESOURCES),
        *("ListStreams", "ListStreamPools", "ListConnectHarnesses"),
        *("GetWorkRequest", "ListWorkRequests", "ListWorkRequestErrors", "ListWorkRequestLogs"),
    }
)
