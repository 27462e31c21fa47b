"""Requests that name many things: others are served between, and one that is given up or cancelled leaves nothing."""

import asyncio
import tracemalloc
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.runtime import scheduler
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.kafka.denied import No, Refused, drained, topic_named
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from headrace.security.access.required_acls import ResourceType
from headrace.topics.errors import UnknownTopic

MANY = 200
_OF_AN_ITEM = 1 << 20

Result = CreatePartitionsResponse.CreatePartitionsTopicResult
Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = DeleteRecordsResponse.DeleteRecordsPartitionResult


def outcome(topic: Any, code: Code, message: str | None) -> Result:
    return Result(name=topic.name, error_code=code, error_message=message)


def outcome_of_partition(asked: Any, code: Code, _: str | None) -> Partition:
    return Partition(partition_index=asked.partition_index, error_code=code)


FLAT = Each("topics", "results", outcome, topic_named)
ONCE = Each("topics", "results", outcome, key=lambda topic: topic.name, twice="{!r} is named more than once")
LAST = Each("topics", "results", outcome, key=lambda topic: topic.name)
NESTED = Each("topics", "topics", outcome_of_partition, topic_named, with_name(Topic))


def request(names: Iterable[str]) -> CreatePartitionsRequest:
    topics = [CreatePartitionsRequest.CreatePartitionsTopic(name=name) for name in names]
    return CreatePartitionsRequest(topics=topics)


def request_of(partitions: dict[str, Iterable[int]]) -> DeleteRecordsRequest:
    asked = DeleteRecordsRequest.DeleteRecordsPartition
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=name, partitions=[asked(partition_index=index) for index in indexes]
            )
            for name, indexes in partitions.items()
        ]
    )


def context_of(request: Any) -> Any:
    return SimpleNamespace(pace=CooperativeScheduler().pace, done=False, api_key=request.API_KEY, taken_out=0)


async def answered(each: Each, request: Any, one: AnswerItem, context: Any = None) -> Any:
    begin = each.handler(lambda _, __: one)
    return await begin(request, context_of(request) if context is None else context)


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item takes all of a slice."""
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize(
    ("each", "asked"),
    [
        (FLAT, request(map(str, range(MANY)))),
        (ONCE, request(map(str, range(MANY)))),
        (NESTED, request_of({"a": range(MANY)})),
        (NESTED, request_of({str(number): [0] for number in range(MANY)})),
        (NESTED, request_of({str(number): [] for number in range(MANY)})),
    ],
)
async def test_other_requests_are_served_between_the_items(each: Each, asked: Any) -> None:
    long = asyncio.create_task(answered(each, asked, lambda *_: None))
    turns = 0
    while not long.done():
        await asyncio.sleep(0)
        turns += 1
    await long
    assert turns > MANY


async def test_items_are_answered_one_after_another_and_in_order() -> None:
    under_way: list[str] = []

    async def answer(topic: Any) -> Result:
        under_way.append(topic.name)
        await asyncio.sleep(0)
        assert under_way == [topic.name]
        under_way.clear()
        return Result(name=topic.name)

    names = [str(number) for number in range(MANY)]
    response = await answered(FLAT, request(names), answer)
    assert [each.name for each in response.results] == names


async def test_the_memory_of_one_item_is_free_before_the_next() -> None:
    async def answer(topic: Any) -> Result:
        working = bytearray(_OF_AN_ITEM)
        await asyncio.sleep(0)
        return Result(name=topic.name, error_code=len(working) % 2)

    asked = request(map(str, range(MANY)))
    tracemalloc.start()
    try:
        await answered(FLAT, asked, answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * _OF_AN_ITEM


async def test_partitions_are_answered_in_their_topics() -> None:
    def answer(topic: Any, asked: Any) -> Partition:
        if topic.name == "gone":
            raise UnknownTopic("gone")
        return Partition(partition_index=asked.partition_index, low_watermark=7)

    response = await answered(NESTED, request_of({"a": [1, 0], "gone": [2], "none": []}), answer)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in response.topics
    ] == [("a", [(1, 0), (0, 0)]), ("gone", [(2, unknown)]), ("none", [])]


async def test_an_item_that_fails_is_refused_and_the_others_are_done_or_answered() -> None:
    async def answer(topic: Any) -> Result | None:
        if topic.name == "b":
            raise RequestError(Code.INVALID_REQUEST, "not b")
        return Result(name="C") if topic.name == "c" else None

    response = await answered(FLAT, request("abc"), answer)
    told = [(each.name, each.error_code, each.error_message) for each in response.results]
    assert told == [("a", 0, None), ("b", Code.INVALID_REQUEST, "not b"), ("C", 0, None)]


async def test_items_of_one_key_are_refused_each_time() -> None:
    response = await answered(ONCE, request("aba"), lambda topic: Result(name=topic.name))
    told = [(each.name, each.error_code, each.error_message) for each in response.results]
    twice = (Code.INVALID_REQUEST, "'a' is named more than once")
    assert told == [("a", *twice), ("b", 0, None), ("a", *twice)]


async def test_items_of_one_key_are_answered_once_as_the_last_of_them_asks() -> None:
    asked = request("aba")
    for count, topic in enumerate(asked.topics):
        topic.count = count
    response = await answered(LAST, asked, lambda topic: Result(name=topic.name, error_code=topic.count))
    assert [(each.name, each.error_code) for each in response.results] == [("a", 2), ("b", 1)]


async def test_items_may_be_made_of_a_request_and_the_response_may_have_more_than_their_answers() -> None:
    each = Each(
        lambda request: [f"{topic.name}!" for topic in request.topics],
        "results",
        lambda name, *_: Result(name=name),
        begin=lambda request: CreatePartitionsResponse(throttle_time_ms=len(request.topics)),
    )
    response = await answered(each, request("ab"), lambda _: None)
    assert response.throttle_time_ms == 2
    assert [each.name for each in response.results] == ["a!", "b!"]


async def test_no_item_is_begun_once_the_request_is_given_up() -> None:
    begun = []
    asked = request("abc")
    context = context_of(asked)

    async def answer(topic: Any) -> Result:
        begun.append(topic.name)
        context.done = topic.name == "b"
        return Result(name=topic.name)

    await answered(FLAT, asked, answer, context)
    assert begun == ["a", "b"]


async def test_a_cancelled_request_leaves_nothing() -> None:
    begun, ended = [], []
    started = asyncio.Event()

    async def answer(topic: Any) -> Result:
        begun.append(topic.name)
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.append(topic.name)
        return Result(name=topic.name)

    others = asyncio.all_tasks()
    long = asyncio.create_task(answered(FLAT, request("abc"), answer))
    await started.wait()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert (begun, ended) == (["a"], ["a"])
    assert asyncio.all_tasks() == others


@pytest.mark.usefixtures("short_slices")
async def test_a_request_that_is_cancelled_between_items_gives_its_turn_away() -> None:
    lane = CooperativeScheduler()
    asked = request("abc")
    context = context_of(asked)
    context.pace = lane.pace
    long = asyncio.create_task(answered(FLAT, asked, lambda topic: topic, context))
    await asyncio.sleep(0)
    long.cancel()
    await asyncio.wait([long])
    async with asyncio.timeout(5):
        await lane.turn()
    assert long.cancelled()


async def test_a_whole_response_is_answered_as_it_is() -> None:
    whole = CreatePartitionsResponse(results=[])

    async def begin(_: Any, __: Any) -> CreatePartitionsResponse:
        return whole

    asked = request("a")
    assert await FLAT.handler(begin)(asked, context_of(asked)) is whole


def test_items_that_are_not_granted_are_answered_one_by_one() -> None:
    asked = request_of({"a": [0, 1], "b": [2]})
    no = No(Code.TOPIC_AUTHORIZATION_FAILED, "")
    rest = drained(NESTED.take_out(asked, context_of(asked), Refused({(ResourceType.TOPIC, "a"): no})))
    assert [topic.name for topic in asked.topics] == ["b"]
    response = DeleteRecordsResponse(topics=[])
    assert rest.add is not None
    rest.add(response)
    [topic] = response.topics
    assert topic.name == "a"
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, no.code), (1, no.code)]
