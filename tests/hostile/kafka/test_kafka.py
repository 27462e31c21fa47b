"""No request of up to 1 MiB, of any Kafka API, keeps another client's ping waiting or takes more memory than it may.

The limits are those of docs/limits.md, with smaller budgets than the defaults so that what goes beyond shows.
"""

import random
from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from headrace.kafka import apis
from headrace.kafka.server.registry import APIS
from headrace.testing import server
from headrace.testing.process import Server
from tests.hostile.http.bystander import Bystander, Seen
from tests.hostile.kafka import by_hand
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import SEEDS, Attack, attacks

apis.load()
MIB = 1 << 20
BY_HAND = by_hand.attacks()


def test_every_api_has_a_seed() -> None:
    assert APIS.keys() == SEEDS.keys(), "tests/hostile/kafka/corpus.py says what each API is asked"


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[Server, Bystander]]:
    """A server full of harmful data, and its bystander."""
    with server(
        headrace_reads_bytes=96 * MIB, queued_max_request_bytes=96 * MIB, headrace_cache_bytes=8 * MIB
    ) as started:
        by_hand.prepare(started)
        bystander = Bystander(started, http=False)
        yield started, bystander
        bystander.close()


@pytest.mark.parametrize("attack", BY_HAND, ids=lambda attack: f"{APIS[attack.api].name}: {attack.name}")
def test_an_attack_affects_no_other_client(attacked: tuple[Server, Bystander], attack: Attack) -> None:
    started, bystander = attacked
    ready = msgspec.structs.replace(attack, frames=attack.made())
    print(bystander.harmless(lambda: carry_out(ready, started)))


@pytest.mark.parametrize("api", sorted(APIS), ids=lambda api: APIS[api].name)
def test_extremes_of_an_api_affect_no_other_client(
    attacked: tuple[Server, Bystander], api: int, request: pytest.FixtureRequest
) -> None:
    started, bystander = attacked
    most: int = request.config.getoption("extremes")
    makers = list(attacks(api))
    if most:
        random.shuffle(makers)  # by the seed that pytest-randomly prints
    made = (attack for make in makers if (attack := make()) is not None)
    chosen = list(islice(made, most or None))

    def seen(attack: Attack) -> Seen:
        found = bystander.watch(lambda: carry_out(attack, started))
        print(attack.name, found)
        return found

    wrong = []
    # A machine that is busy makes one or the other look harmful: those are tried again, one by one.
    for attack in [attack for attack in chosen if not seen(attack).harmless]:
        try:
            print(attack.name, bystander.harmless(lambda attack=attack: carry_out(attack, started)))  # type: ignore[misc]
        except AssertionError as error:
            wrong.append(f"{attack.name}: {error}")
    assert not wrong, "\n".join(wrong)
