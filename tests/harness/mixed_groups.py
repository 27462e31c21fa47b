"""A group with members of the classic protocol and of KIP-848."""

from headrace.groups.consumer_subscription import assignment, partitions_of
from headrace.groups.errors import GroupError
from tests.harness.consumers import ConsumerContext
from tests.harness.groups import subscription

EAGER = (("range", subscription("flights")),)


def owning(*partitions: int) -> tuple[tuple[str, bytes], ...]:
    """Protocols of a cooperative member that has these partitions."""
    owned = assignment({"flights": partitions})[2:-4]
    return (("cooperative-sticky", subscription("flights")[:-4] + owned),)


class MixedContext(ConsumerContext):
    """A group of classic members and consumers."""

    def classic(self, shares: dict[str, list[int]], protocols: tuple[tuple[str, bytes], ...] = EAGER) -> list[str]:
        """Make a stable classic group. Returns the members' ids, in the order of `shares`."""
        joins = [self.join(version=3, protocols=protocols) for _ in shares]
        while any(join.held for join in joins):
            self.sleep(100)
        ids = [join.result.member_id for join in joins]
        each = {who: assignment({"flights": share}) for who, share in zip(ids, shares.values(), strict=True)}
        leader = joins[0].result.leader
        for who in sorted(ids, key=lambda each: each == leader):
            self.sync(who, assignments=each, protocol_type=None, protocol=None)
        return ids

    def rejoin(self, member: str, protocols: tuple[tuple[str, bytes], ...] = EAGER) -> list[int]:
        """Join and sync as a classic client does. Returns its partitions."""
        joined = self.join(member, protocols=protocols).result
        assert (joined.error, joined.leader, joined.members) == (None, "", ())
        synced = self.sync(member, joined.generation, protocol=joined.protocol).result
        assert synced.error is None
        return (partitions_of(synced.assignment) or {}).get("flights", [])

    def error_of(self, member: str, generation: int) -> GroupError | None:
        """The error of a classic heartbeat."""
        return self.heartbeat(member, generation).result.error
