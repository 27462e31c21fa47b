"""Transactions of several producers and plain records, interleaved at random in one partition, with a model."""

import contextlib
import random
from collections.abc import Iterator

from confluent_kafka import KafkaException, Producer


class Interleaving:
    """What producers have sent, in the order of the log. Values are unique."""

    def __init__(self, bootstrap: str, topic: str, chance: random.Random) -> None:
        self.topic = topic
        self._chance = chance
        self._plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._producers = [
            Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}", "linger.ms": 0})
            for number in range(3)
        ]
        for each in self._producers:
            each.init_transactions(20)
        self._open: dict[int, int] = {}
        """Producer -> number of its open transaction."""
        self._log: list[tuple[bytes, int]] = []
        """Value and number of the transaction; 0: none."""
        self._outcomes = {0: True}
        self._begun = 0

    def some(self, count: int) -> None:
        """Send records, and begin and end transactions."""
        for _ in range(count):
            number = self._chance.randrange(5)
            if number >= len(self._producers):
                self._send(self._plain, 0)
            elif number in self._open and self._chance.random() < 0.5:
                self._end(number, commit=self._chance.random() < 0.5)
            else:
                if number not in self._open:
                    self._begin(number)
                self._send(self._producers[number], self._open[number])

    def transaction(self, count: int, *, commit: bool | None) -> None:
        """Send one transaction of a producer that has none open. `commit` None: it stays open."""
        number = next(each for each in range(len(self._producers)) if each not in self._open)
        self._begin(number)
        for _ in range(count):
            self._send(self._producers[number], self._open[number])
        if commit is not None:
            self._end(number, commit=commit)

    def _begin(self, number: int) -> None:
        self._begun += 1
        self._open[number] = self._begun
        self._producers[number].begin_transaction()

    def _send(self, producer: Producer, transaction: int) -> None:
        value = b"%d" % len(self._log)
        producer.produce(self.topic, value, partition=0)
        assert producer.flush(20) == 0
        self._log.append((value, transaction))

    def _end(self, number: int, *, commit: bool) -> None:
        producer = self._producers[number]
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
        self._outcomes[self._open.pop(number)] = commit

    def committed(self) -> list[bytes]:
        """The values that readers of committed records see now."""
        found: list[bytes] = []
        for value, transaction in self._log:
            if transaction not in self._outcomes:
                break
            if self._outcomes[transaction]:
                found.append(value)
        return found

    def everything(self) -> list[bytes]:
        """All values."""
        return [value for value, _ in self._log]

    def close(self) -> None:
        for number in list(self._open):
            with contextlib.suppress(KafkaException):
                self._end(number, commit=False)


@contextlib.contextmanager
def interleaved(bootstrap: str, topic: str, seed: int) -> Iterator[Interleaving]:
    made = Interleaving(bootstrap, topic, random.Random(seed))
    yield made
    made.close()
