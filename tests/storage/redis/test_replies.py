"""What the texts of Redis' errors mean, and what clients read of them."""

import pytest

from headrace.storage.redis.replies import error_of_text
from headrace.topics.errors import (
    StorageFull,
    StorageMoving,
    StorageNotReplicated,
    StorageNotWritten,
    StorageUnavailable,
)


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        ("MOVED 449 10.0.0.1:6379", StorageUnavailable, "another node has its slot by now"),
        ("ASK 449 10.0.0.1:6379", StorageMoving, "its slot is being moved to another shard"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StorageMoving, "its slot is being moved"),
    ],
)
def test_a_slot_that_moves_or_has_moved_is_reported_as_one(reply: str, kind: type[Exception], told: str) -> None:
    error = error_of_text(reply)
    assert type(error) is kind
    assert told in str(error)
    assert reply in str(error)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", StorageNotWritten),
        ("NOREPLICAS Not enough good replicas to write.", StorageNotReplicated),
    ],
)
def test_a_read_only_server_is_distinguished_from_one_perhaps_replaced(reply: str, kind: type[Exception]) -> None:
    assert type(error_of_text(reply)) is kind


@pytest.mark.parametrize(
    ("reply", "where"),
    [
        ("NOPERM User default has no permissions to run the 'set' command", ""),
        (
            "ERR ACL failure in script: User default has no permissions to run the 'hset' command",
            " script: on @user_script:9.",
        ),
        (
            "ERR The user executing the script can't run this command or subcommand",
            " script: 5f1c0de, on @user_script:1.",
        ),
    ],
)
def test_what_the_user_may_not_do_for_now_is_to_be_tried_again(reply: str, where: str) -> None:
    error = error_of_text(reply + where)
    assert type(error) is StorageUnavailable
    assert str(error) == f"Redis answered: {reply}"


@pytest.mark.parametrize("where", ["", " script: on @user_script:18.", " script: 5f1c0de, on @user_script:1."])
def test_places_in_our_scripts_are_not_reported(where: str) -> None:
    full = "MISCONF Errors writing to the AOF file: No space left on device"
    assert str(error_of_text(full + where)).endswith(f"; it answered: {full}")
    mistake = f"ERR Wrong number of args{where}"
    assert str(error_of_text(mistake)) == f"Redis answered: {mistake}"


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (
            "OOM command not allowed when used memory > 'maxmemory'. script: 5f1c0de, on @user_script:1.",
            StorageFull,
            "Redis accepts no writes: its memory is full (OOM); raise its maxmemory",
        ),
        (
            "MISCONF Errors writing to the AOF file: No space left on device",
            StorageNotWritten,
            (
                "Redis accepts no writes: it cannot write its own files (MISCONF); free space on its disk, and see its "
                "log; it answered: MISCONF Errors writing to the AOF file: No space left on device"
            ),
        ),
        (
            "NOREPLICAS Not enough good replicas to write.",
            StorageNotReplicated,
            "Redis accepts no writes: NOREPLICAS; connect its replicas",
        ),
    ],
)
def test_a_refused_write_states_the_reason_and_the_advice(reply: str, kind: type[Exception], said: str) -> None:
    error = error_of_text(reply)
    assert type(error) is kind
    assert str(error).startswith(said)
