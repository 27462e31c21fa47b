"""Transactions under faults, from a seed; and the same with one rule broken, which the rules of `World` must notice.

To run one seed again: `simulate(seed)`. Many: `python -m tests.simulation.test_transactions --rounds 1000`.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.simulations import check_noticed, noted, run_many
from tests.harness.transaction_world import Coordinator, Log, World

from headrace.machines.effects import Now, Persist, SetTimer
from headrace.transactions import transaction
from headrace.transactions.effects import Effect, EndParticipants, VerifyResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Ended, Init, Lookup, TimerKind, Verify
from headrace.transactions.model import (
    NO_PRODUCER_ID,
    SaveTransaction,
    StoredTransaction,
    TransactionChange,
    TransactionState,
)
from headrace.transactions.rules import EndStep
from headrace.transactions.transaction import Transaction
from headrace.transactions.turn import Turn

Patch = pytest.MonkeyPatch


def simulate(seed: int, log: type[Log] = Log, coordinator: type[Coordinator] = Coordinator) -> World:
    world = World(seed, log, coordinator)
    with noted(seed):
        world.run()
    return world


@pytest.mark.parametrize("seed", range(60))
def test_transactions_are_atomic_whatever_happens(seed: int) -> None:
    simulate(seed)


def test_transactions_are_atomic_from_the_seed_of_the_run() -> None:
    seed = random.getrandbits(32)  # by the seed that pytest-randomly prints
    print(f"simulate(seed={seed})")
    simulate(seed)


def test_the_simulation_reaches_what_it_is_for() -> None:
    worlds = [simulate(seed) for seed in range(100, 106)]
    happened = sum((world.happened for world in worlds), Counter())
    outcomes = sum((world.outcomes for world in worlds), Counter())

    assert min(happened[each] for each in ("kill", "take over", "refused write")) > 0
    assert outcomes["committed"] > 50
    assert outcomes["aborted"] > 20


# Rules that are broken on purpose


def _changed(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by `change(original, *arguments)`."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: change(original, *arguments, **options))


def markers_before_the_decision_is_durable(patch: Patch) -> None:
    def effects(original: Callable[[Turn], list[Effect]], turn: Turn) -> list[Effect]:
        return sorted(original(turn), key=lambda each: not isinstance(each, EndParticipants))

    _changed(patch, Turn, "effects", effects)


def responses_before_the_decision_is_durable(patch: Patch) -> None:
    def effects(original: Callable[[Turn], list[Effect]], turn: Turn) -> list[Effect]:
        return sorted(original(turn), key=lambda each: isinstance(each, Persist | EndParticipants | SetTimer))

    _changed(patch, Turn, "effects", effects)


def a_restart_forgets_participants(patch: Patch) -> None:
    def restore(original: Any, name: str, settings: Any, stored: StoredTransaction, now: Now) -> Any:
        machine, effects = original(name, settings, stored, now)
        return machine, [each for each in effects if not isinstance(each, EndParticipants)]

    _changed(patch, Transaction, "restore", restore)


def a_restart_forgets_the_timeout(patch: Patch) -> None:
    def restore(original: Any, name: str, settings: Any, stored: StoredTransaction, now: Now) -> Any:
        machine, effects = original(name, settings, stored, now)
        kept = [each for each in effects if not (isinstance(each, SetTimer) and each.key is TimerKind.TRANSACTION)]
        return machine, kept

    _changed(patch, Transaction, "restore", restore)


def logs_ignore_numbers(patch: Patch) -> None:
    patch.setattr(Log, "compares_numbers", False)


def logs_forget_numbers_in_recovery(patch: Patch) -> None:
    def recover(original: Any, log: Log) -> None:
        original(log)
        log.ended.clear()

    _changed(patch, Log, "recover", recover)


def transactions_have_one_number(patch: Patch) -> None:
    def add(original: Any, machine: Transaction, event: Add, turn: Turn) -> None:
        original(machine, event, turn)
        if machine.current.state is TransactionState.ONGOING:
            machine.current = replace(machine.current, number=1)

    _changed(patch, Transaction, "_add", add)


def an_end_of_another_epoch_counts(patch: Patch) -> None:
    def on_end(original: Any, current: StoredTransaction, event: End) -> EndStep | TransactionError:
        if current.state is TransactionState.ONGOING and event.producer_id == current.producer_id:
            return EndStep.PREPARE
        return original(current, event)  # type: ignore[no-any-return]

    _changed(patch, transaction, "on_end", on_end)


def a_repeated_end_of_the_other_outcome_succeeds(patch: Patch) -> None:
    def on_end(original: Any, current: StoredTransaction, event: End) -> EndStep | TransactionError:
        found = original(current, event)
        fenced = found is TransactionError.PRODUCER_FENCED and not current.state.open
        return EndStep.REPEAT if fenced and current.state is not TransactionState.EMPTY else found

    _changed(patch, transaction, "on_end", on_end)


def a_decision_may_change(patch: Patch) -> None:
    def on_end(original: Any, current: StoredTransaction, event: End) -> EndStep | TransactionError:
        found = original(current, event)
        return EndStep.PREPARE if found is TransactionError.CONCURRENT_TRANSACTIONS and not event.commit else found

    def init(original: Any, machine: Transaction, event: Init, turn: Turn) -> None:
        if machine.current.state.prepared:
            machine.current = replace(machine.current, state=TransactionState.ONGOING)
        original(machine, event, turn)

    _changed(patch, transaction, "on_end", on_end)
    _changed(patch, Transaction, "_init", init)


def late_responses_of_earlier_transactions_count(patch: Patch) -> None:
    def ended(original: Any, machine: Transaction, event: Ended, turn: Turn) -> None:
        original(machine, Ended(machine.current.number, event.participants), turn)

    _changed(patch, Transaction, "_ended", ended)


def one_participant_is_enough(patch: Patch) -> None:
    def ended(original: Any, machine: Transaction, event: Ended, turn: Turn) -> None:
        if event.participants:
            event = Ended(event.number, tuple(machine.current.participants()))
        original(machine, event, turn)

    _changed(patch, Transaction, "_ended", ended)


def participants_are_called_once(patch: Patch) -> None:
    def set_timer(original: Any, turn: Turn, key: TimerKind, delay_ms: int) -> None:
        if key is not TimerKind.RETRY:
            original(turn, key, delay_ms)

    _changed(patch, Turn, "set_timer", set_timer)


def everything_is_in_the_transaction(patch: Patch) -> None:
    def verify(_: Any, machine: Transaction, event: Verify, turn: Turn) -> None:
        turn.reply(event.token, VerifyResult(number=machine.current.number + 1))

    _changed(patch, Transaction, "_verify", verify)


def a_decided_transaction_is_not_found(patch: Patch) -> None:
    def may_end(original: Any, machine: Transaction, event: Lookup) -> bool:
        return machine.current.state is TransactionState.ONGOING and bool(original(machine, event))

    _changed(patch, Transaction, "_may_end", may_end)


def a_new_producer_does_not_fence(patch: Patch) -> None:
    def initialized(original: Any, machine: Transaction, event: Init, state: StoredTransaction, turn: Turn) -> None:
        if machine.current.producer_id != NO_PRODUCER_ID:
            state = machine.current
        original(machine, event, state, turn)

    _changed(patch, Transaction, "_initialized", initialized)


def a_timeout_does_not_fence(patch: Patch) -> None:
    def prepare(original: Any, machine: Transaction, *arguments: Any, **options: Any) -> Any:
        if options.pop("fenced", False) and machine.current.version == 1:
            options.pop("last_epoch", None)
        return original(machine, *arguments, **options)

    _changed(patch, Transaction, "_prepare", prepare)


def _begins(write: "Persist[TransactionChange]") -> bool:
    (change,) = write.changes
    return isinstance(change, SaveTransaction) and change.state.state is TransactionState.ONGOING


def an_addition_is_not_stored(patch: Patch) -> None:
    def effects(original: Callable[[Turn], list[Effect]], turn: Turn) -> list[Effect]:
        return [each for each in original(turn) if not (isinstance(each, Persist) and _begins(each))]

    _changed(patch, Turn, "effects", effects)


def a_failed_write_keeps_the_machine(patch: Patch) -> None:
    patch.setattr(Coordinator, "failed", Coordinator.refuse)


def storage_accepts_earlier_coordinators(patch: Patch) -> None:
    patch.setattr(Coordinator, "__init__", _unfenced(Coordinator.__init__))


def _unfenced(original: Any) -> Any:
    def begin(coordinator: Coordinator, world: World, number: int) -> None:
        world.storage.fence = (0, 0)
        original(coordinator, world, number)
        coordinator.number = 1_000

    return begin


MISTAKES = [
    markers_before_the_decision_is_durable,
    responses_before_the_decision_is_durable,
    a_restart_forgets_participants,
    a_restart_forgets_the_timeout,
    logs_ignore_numbers,
    logs_forget_numbers_in_recovery,
    transactions_have_one_number,
    an_end_of_another_epoch_counts,
    a_repeated_end_of_the_other_outcome_succeeds,
    a_decision_may_change,
    late_responses_of_earlier_transactions_count,
    one_participant_is_enough,
    participants_are_called_once,
    everything_is_in_the_transaction,
    a_decided_transaction_is_not_found,
    a_new_producer_does_not_fence,
    a_timeout_does_not_fence,
    an_addition_is_not_stored,
    a_failed_write_keeps_the_machine,
    storage_accepts_earlier_coordinators,
]
MOST_SEEDS = 300


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_the_rules_notice_a_mistake(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    check_noticed(simulate, range(MOST_SEEDS))


if __name__ == "__main__":
    run_many(simulate)
