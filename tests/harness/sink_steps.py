"""The steps of a commit of Spark's exactly-once sink, each reported after it is taken."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.client.errors import Fenced
from headrace.client.transactions import Identity, Transactions


def report_steps(participants: int, reached: Callable[[str], None]) -> Callable[[], None]:
    """Report the steps of the commit that this process runs next; return what ends the reports.

    stored and decided: the decision, before and after its transaction ends. some and all: of the tasks' transactions
    are committed. completing: the decision is stored again.
    """
    names = ["stored", "decided", *["some"] * (participants - 1), "all", "completing"]
    steps = iter(names if participants else ())
    commit_offsets, end, end_all = Transactions.commit_offsets, Transactions.end, Transactions.end_all

    def reporting_commit(self: Transactions, *arguments: Any) -> None:
        commit_offsets(self, *arguments)
        reached(next(steps, ""))

    def reporting_end(self: Transactions, identity: Identity, *, commit: bool) -> Identity:
        following = end(self, identity, commit=commit)
        reached(next(steps, ""))
        return following

    def reporting_ends(self: Transactions, identities: Sequence[Identity], *, commit: bool) -> list[Fenced | None]:
        refused: list[Fenced | None] = []
        for one in identities:
            refused += end_all(self, [one], commit=commit)
            reached(next(steps, ""))
        return refused

    def restore() -> None:
        Transactions.commit_offsets = commit_offsets  # type: ignore[method-assign]
        Transactions.end = end  # type: ignore[method-assign]
        Transactions.end_all = end_all  # type: ignore[method-assign]

    Transactions.commit_offsets = reporting_commit  # type: ignore[method-assign, assignment]
    Transactions.end = reporting_end  # type: ignore[method-assign]
    Transactions.end_all = reporting_ends  # type: ignore[method-assign]
    return restore
