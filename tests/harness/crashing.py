"""A server of groups that dies in the middle of what it does, on a manual clock."""

from headrace.groups.effects import Effect
from headrace.machines.effects import Persist
from tests.harness.groups import GroupContext


class CrashingContext(GroupContext):
    """Crashes at its next write on request, and is restarted."""

    crash: str | None = None
    """`before` or `after` its next write; None: it goes on."""
    crashes = 0

    def carry_out(self, effects: list[Effect]) -> None:
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        if self.crash is None or not writes:
            super().carry_out(effects)
            return
        if self.crash == "after":
            self.storage.apply(writes[0].changes)
        self.crash = None
        self.crashes += 1
        self.restart()
