"""The table of what OCI Streaming lacks: whole, without contradictions, and the guide's."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from headrace.kafka import apis
from headrace.kafka.oci_streaming import STRICT, SUPPORTED, UNSUPPORTED
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.protocol.messages import CreateTopicsRequest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "oci-strict.md"


def test_every_api_is_supported_or_not_and_has_its_name() -> None:
    apis.load()
    withheld = {key: name for each in UNSUPPORTED for key, name in each.apis.items()}
    counts = Counter([*SUPPORTED, *(key for each in UNSUPPORTED for key in each.apis)])
    assert [key for key, count in counts.items() if count > 1] == []
    unknown = {api.name for key, api in APIS.items() if key not in counts}
    assert not unknown, "say in kafka/oci_streaming.py whether OCI Streaming supports them"
    assert {key: api.name for key, api in APIS.items() if key in withheld} == {
        key: name for key, name in withheld.items() if key in APIS
    }
    assert set(STRICT.served()) == SUPPORTED & set(APIS) == set(APIS) - set(withheld)


def test_the_guide_lists_what_is_refused() -> None:
    text = GUIDE.read_text("utf-8").partition("## Unsupported features")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (yes|no) \|$", text, re.MULTILINE)
    told = [(feature, set(re.findall(r"`(\w+)`", named)), documented) for feature, named, documented in rows]
    assert told == [(each.feature, set(each.apis.values()), "yes" if each.documented else "no") for each in UNSUPPORTED]


def _request(*policies: str | None) -> CreateTopicsRequest:
    made = CreateTopicsRequest.CreatableTopic
    topics = [
        made(
            name=f"t{number}",
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value=policy)],
        )
        for number, policy in enumerate(policies)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1, validate_only=False)


def _channel(*topics: str) -> SimpleNamespace:
    return SimpleNamespace(broker=SimpleNamespace(topics=SimpleNamespace(has=topics.__contains__)))


def _context(*topics: str) -> RequestContext:
    return RequestContext(cast("ResponseChannel", _channel(*topics)), 19, 7, 1, None, 0)


def test_compaction_is_found_in_any_form_of_the_list() -> None:
    find = STRICT.parts[CreateTopicsRequest.API_KEY]
    request = _request("compact", "delete", "delete , compact", None, "", "compact,delete")
    assert [name for (_, name), _ in find(request, _context())] == ["t0", "t2", "t5"]
    assert [name for (_, name), _ in find(request, _context("t2"))] == ["t0", "t5"], "one that exists"


def test_a_request_of_which_nothing_is_left_does_not_reach_its_handler() -> None:
    apis.load()
    answers: list[object] = []

    class Recorded(RequestContext):
        def answer(self, response: object, version: int | None = None) -> None:
            answers.append(response)

    context = Recorded(cast("ResponseChannel", _channel()), 19, 7, 1, None, 0)
    assert STRICT.served()[19].handler(_request("compact"), context) is None
    (answer,) = answers
    assert [topic.name for topic in answer.topics] == ["t0"]  # type: ignore[attr-defined]
